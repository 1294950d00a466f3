"""The names of the blocklist, as data; `verdict` says what they mean."""

VALUES = (
    "builtins.bool", "builtins.bytes", "builtins.complex", "builtins.dict", "builtins.float", "builtins.frozenset",
    "builtins.int", "builtins.list", "builtins.range", "builtins.set", "builtins.slice", "builtins.str",
    "builtins.tuple", "collections.Counter", "collections.OrderedDict", "collections.deque", "datetime.date",
    "datetime.datetime", "datetime.time", "datetime.timedelta", "datetime.timezone", "decimal.Decimal",
    "fractions.Fraction", "pathlib.Path", "pathlib.PosixPath", "pathlib.PurePath", "pathlib.PurePosixPath",
    "types.SimpleNamespace",
)  # fmt: skip
"""Names of the standard library that a config may use, besides those of math: they make values and do nothing else."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


NEVER_OF_STDLIB = _names(
    """
    _ctypes _frozen_importlib _frozen_importlib_external _functools _imp _io _operator _pickle _posixsubprocess
    _sitebuiltins _socket _thread antigravity ast asyncio atexit bdb builtins cProfile cgi cgitb cmd code codeop codecs
    compileall concurrent contextlib copyreg ctypes dataclasses dbm distutils doctest ensurepip faulthandler fcntl
    fileinput ftplib functools gc http idlelib imaplib imp importlib inspect io itertools lib2to3 linecache logging
    marshal mmap modulefinder multiprocessing nntplib nt ntpath operator optparse os pdb pickle pickletools pkgutil
    platform poplib posix posixpath profile pty py_compile pydoc readline resource rlcompleter runpy sched shelve
    signal site smtpd smtplib socket socketserver sqlite3 ssl string subprocess symtable sys syslog tarfile telnetlib
    tempfile termios threading timeit tkinter trace traceback tracemalloc tty turtle turtledemo types typing unittest
    urllib venv warnings weakref webbrowser winreg wsgiref xmlrpc zipapp zipfile zipimport
    """
)
"""Modules of the standard library of which nothing but VALUES is ever allowed."""

CORE = _names(
    """
    PIL leyden lightning lightning_fabric lightning_utilities numpy pydantic pytorch_lightning rich safetensors
    simplejpeg sklearn tensorboard torch torchmetrics typing_extensions
    """
)
"""Packages that Leyden itself depends on: none of their functions makes an object of a config group."""

PASSING = ("hydra.experimental.callbacks.", "hydra._internal.core_plugins.")
"""Names of blocked packages that pass: Hydra's own callbacks, launchers and sweepers."""

NEVER = _names(
    # packages that run, load or build code, start processes, or talk to other hosts; then parts of packages whose other
    # parts a config may name
    """
    Cython IPython aiohttp asteval boto3 cffi cloudpickle coverage cppyy dask debugpy dill
    execnet huggingface_hub hydra httpx ipykernel jinja2 joblib js2py jsonpickle jupyter_client
    jupyter_core keyring mako mpi4py nbconvert nbformat numba numexpr omegaconf paramiko pexpect pip
    pkg_resources plumbum psutil ptyprocess pydevd pytest _pytest pyximport ray requests rpy2 ruamel setuptools
    submitit sympy tornado twisted urllib3 uvicorn werkzeug wheel yaml zmq

    lightning.app lightning.data lightning.fabric.cli lightning.fabric.utilities.cloud_io lightning.pytorch.cli
    lightning.pytorch.core.saving lightning.pytorch.trainer lightning.pytorch.Trainer lightning.pytorch.tuner
    lightning.pytorch.utilities.migration lightning.pytorch.utilities.upgrade_checkpoint lightning_fabric.cli
    lightning_fabric.utilities.cloud_io pytorch_lightning.cli pytorch_lightning.core.saving pytorch_lightning.trainer
    pytorch_lightning.Trainer lightning.Trainer

    leyden.trainer.base leyden.trainer.cli leyden.trainer.config leyden.trainer.diagnostics leyden.trainer.engine
    leyden.trainer.entrypoints leyden.trainer.hardware leyden.trainer.hopping leyden.trainer.launch
    leyden.trainer.runs leyden.trainer.sweep

    numpy.apply_along_axis numpy.apply_over_axes numpy.core numpy.ctypeslib numpy.distutils numpy.f2py numpy.fromfile
    numpy.fromfunction numpy.frompyfunc numpy.genfromtxt numpy.lib numpy.load numpy.loadtxt numpy.memmap
    numpy.piecewise numpy.save numpy.savetxt numpy.savez numpy.savez_compressed numpy.testing numpy.vectorize

    pandas.eval pandas.read_pickle pandas.io safetensors.torch.save_file scipy.io scipy.LowLevelCallable
    sklearn.utils.metaestimators tensorboard.program

    torch.classes torch.compile torch.distributed.checkpoint torch.distributed.elastic torch.distributed.launch
    torch.distributed.launcher torch.distributed.nn torch.distributed.rpc torch.distributed.run torch.export
    torch.from_file torch.fx torch.hub torch.jit torch.library torch.load torch.multiprocessing torch.onnx torch.ops
    torch.package torch.save torch.serialization torch.storage torch.testing torch.utils.backend_registration
    torch.utils.benchmark torch.utils.bottleneck torch.utils.collect_env torch.utils.cpp_backtrace
    torch.utils.cpp_extension torch.utils.data.datapipes torch.utils.data.graph torch.utils.hipify
    torch.utils.model_zoo torch.utils.show_pickle
    torch._classes torch._dynamo torch._inductor torch._ops torch._prims_common

    timm.models.load_checkpoint timm.utils torchvision.extension torchvision.io
    """
)
"""Packages, modules and names of which nothing is ever allowed."""
