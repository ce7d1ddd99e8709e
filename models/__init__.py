if __name__ != "hal.models":
    raise ImportError("this folder is the package hal.models; import it by that name")
