"""Label-free calibration of sentence embeddings: a frozen encoder, a flow or a closed form, an isotropic space.

The public names are loaded when they are first used, so that ``import bertflow`` is instant; ``__init__.pyi`` lists
them.
"""

from importlib.metadata import version

import lazy_loader

__getattr__, __dir__, _names = lazy_loader.attach_stub(__name__, __file__)
__version__ = version("bertflow")
__all__ = sorted([*_names, "__version__"])
