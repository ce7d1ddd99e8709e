"""A whole platform outside hal: what a third party writes to add one."""
