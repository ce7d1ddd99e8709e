"""A model on a device, decided and measured before anything is allocated."""
