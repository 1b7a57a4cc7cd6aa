"""Every message of the package, under a code. 0xx scores, 1xx features, 2xx optimizers, 3xx losses and models,
4xx components, 5xx saving, 6xx constraints, 7xx command line."""


class _Coded(type):
    """Puts the code in front of each message, so that ``Errors.CRF001`` starts with ``CRF001: ``."""

    def __new__(cls, name, bases, namespace):
        coded = {key: f"{key}: {value}" if key.startswith("CRF") else value for key, value in namespace.items()}
        return super().__new__(cls, name, bases, coded)


class Errors(metaclass=_Coded):
    CRF001 = "Unknown tag scheme '{scheme}'. Known schemes: {known}."


class Warnings(metaclass=_Coded):
    pass
