"""What the public functions take and give back: ``kinds.pyi`` lists it, and a name is loaded when it is first used."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub("bertflow", __file__)
