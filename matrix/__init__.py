if __name__ != "hal.matrix":
    raise ImportError("this folder is the package hal.matrix; import it by that name")
