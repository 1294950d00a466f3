"""Configs that name what would execute code, and the keys at fault."""

MINE = "target_policy_examples"

TOUCH = "+model.command='touch canary'"
ARGS = "+model.args=[touch,canary]"
MODELS = {
    # target: overrides of its arguments
    "os.system": [TOUCH],
    "posix.system": [TOUCH],
    "os.mkdir": ["+model.path=canary"],
    "os.path.os.system": [TOUCH],
    "subprocess.run": [ARGS],
    "subprocess.Popen": [ARGS],
    "shutil.copyfile": ["+model.src=evil.py", "+model.dst=canary"],
    "shutil.rmtree": ["+model.path=evil.py"],
    "pty.spawn": ["+model.argv=[touch,canary]"],
    "runpy.run_path": ["+model.path_name=evil.py"],
    "importlib.import_module": ["+model.name=evil"],
    "pickle.load": [],
    "builtins.exec": [],
    "builtins.__import__": ["+model.name=evil"],
    "builtins.open": ["+model.file=canary", "+model.mode=w"],
    "functools.partial": [],
    "operator.methodcaller": [],
    "ctypes.CDLL": ["+model.name=evil.so"],
    "tempfile.mkdtemp": ["+model.dir=.", "+model.prefix=canary"],
    "logging.FileHandler": ["+model.filename=canary"],
    "logging.config.dictConfig": ["+model.config={version:1,handlers:{h:{class:logging.FileHandler,filename:canary}}}"],
    "psutil.Popen": [ARGS],
    "yaml.unsafe_load": ["+model.stream='!!python/object/apply:os.system [touch canary]'"],
    "joblib.load": ["+model.filename=evil.pkl"],
    "numpy.load": ["+model.file=evil.npy", "+model.allow_pickle=true"],
    "hydra.utils.instantiate": ["+model.config={path:evil}"],
    "hydra.utils.get_method": ["+model.path=os.system"],
    "omegaconf.OmegaConf.save": ["+model.config={a:1}", "+model.f=canary"],
    "torch.load": ["+model.f=evil.pt", "+model.weights_only=false"],
    "torch.save": ["+model.obj=1", "+model.f=canary"],
    "torch.hub.load": ["+model.repo_or_dir=.", "+model.model=x", "+model.source=local"],
    "torch.from_file": ["+model.filename=canary", "+model.shared=true", "+model.size=1"],
    "torch.utils.cpp_extension.load": ["+model.name=x", "+model.sources=[evil.cpp]"],
    "torch.ops.load_library": ["+model.path=evil.so"],
    "torch.os.system": [TOUCH],
    "torch.nn.Module.__init__": [],
    "torch.tensor": ["+model.data=[1]"],
    "lightning.pytorch.os.system": [TOUCH],
    "lightning.pytorch.LightningModule.load_from_checkpoint": ["+model.checkpoint_path=evil.pt"],
    "leyden.trainer.base.paths.os.system": [TOUCH],
    "leyden.trainer.cli.main.main": ["+model.arguments=[]"],
    "leyden.trainer.base.atomic_file.write_atomically": ["+model.path=canary", "+model.text=x"],
    f"{MINE}.os.system": [TOUCH],
    f"{MINE}.system_of.system": [TOUCH],
    f"{MINE}.shell": [TOUCH],
    f"{MINE}.touch": [],
    f"{MINE}.Tools.run": [TOUCH],
    f"{MINE}.Tools.inner.system": [TOUCH],
    f"{MINE}.environ.update": ["+model.LD_PRELOAD=evil.so"],
    f"{MINE}.torch.os.system": [TOUCH],
    f"{MINE}.torch.hub.load": ["+model.repo_or_dir=.", "+model.model=x", "+model.source=local"],
}

CALL = "{_target_:os.system,command:'touch canary'}"
ALIAS = "{_target_:torch.os.system,command:'touch canary'}"
OWN = [f"model._target_={MINE}.Net"]
ELSEWHERE = {
    # overrides: the key at fault
    "nested": ([*OWN, f"+model.norm={CALL}"], "model.norm._target_"),
    "nested, by an alias": ([*OWN, f"+model.norm={ALIAS}"], "model.norm._target_"),
    "nested, partial": (
        [*OWN, "+model.norm={_target_:os.system,_partial_:true,command:'touch canary'}"], "model.norm._target_"),
    "in a list": ([*OWN, f"+model.layers=[{CALL}]"], "model.layers.0._target_"),
    "in a list in a list, by an alias": ([*OWN, f"+model.layers=[[1,{ALIAS}]]"], "model.layers.0.1._target_"),
    "in a dictionary in a node": (
        [*OWN, f"+model.a={{_target_:{MINE}.text,b:{{c:{CALL}}}}}"], "model.a.b.c._target_"),
    "a dataset": (["dataset._target_=os.system", "+dataset.command='touch canary'"], "dataset._target_"),
    "a dataset's class": (["dataset._target_=torch.os.system"], "dataset._target_"),
    "a task": (["task._target_=torch.os.system", "+task.command='touch canary'"], "task._target_"),
    "a strategy": (["strategy._target_=torch.os.system", "+strategy.command='touch canary'"], "strategy._target_"),
    "an optimizer": (["optimizer._target_=torch.os.system"], "optimizer._target_"),
    "a schedule": (["schedule._target_=torch.os.system"], "schedule._target_"),
    "an augmentation": (["augment._target_=torch.os.system", "+augment.command='touch canary'"], "augment._target_"),
    "a callback": ([f"+callbacks.mine={ALIAS}"], "callbacks.mine._target_"),
    "a logger": ([f"+logger.mine={ALIAS}"], "logger.mine._target_"),
    "a class of another group": (["optimizer._target_=torch.nn.Linear"], "optimizer._target_"),
    "a network as a callback": ([f"+callbacks.mine._target_={MINE}.Tools"], "callbacks.mine._target_"),
}  # fmt: skip
SWEPT = {
    "Hydra's callback": ([f"+hydra.callbacks.a={CALL}"], "hydra.callbacks.a._target_"),
    "Hydra's callback, by an alias": ([f"+hydra.callbacks.a={ALIAS}"], "hydra.callbacks.a._target_"),
    "Hydra's sweeper": (["hydra.sweeper._target_=os.system"], "hydra.sweeper._target_"),
    "Hydra's launcher": (["hydra.launcher._target_=os.system"], "hydra.launcher._target_"),
    "an argument of the sweeper": ([f"+hydra.sweeper.a={CALL}"], "hydra.sweeper.a._target_"),
    "the Optuna sweeper's function": (["+hydra.sweeper.custom_search_space=os.system"], "custom_search_space"),
    "a factory of logging": (
        ["hydra/job_logging=default", "+hydra.job_logging.handlers.a={'()':os.system,command:'touch canary'}"], "()"),
    "a class of logging": (
        ["hydra/job_logging=default", "+hydra.job_logging.handlers.a={class:subprocess.Popen,args:[touch,canary]}"],
        "hydra.job_logging.handlers.a.class"),
    "a class of logging, by an alias": (
        ["hydra/hydra_logging=default", "+hydra.hydra_logging.formatters.a={class:torch.os.system}"],
        "hydra.hydra_logging.formatters.a.class"),
    "an object in logging": (
        ["hydra/job_logging=default", "hydra.job_logging.handlers.console.stream='ext://os.environ'"],
        "hydra.job_logging.handlers.console.stream"),
    "an environment variable": (["+hydra.job.env_set.LD_PRELOAD=evil.so"], "hydra.job.env_set.LD_PRELOAD"),
}  # fmt: skip

CODE = '\'__import__("os").system("touch canary")\''
COPIED = {
    # of section 2 of the second audit: overrides of a sweep, and the key at fault
    "an annotation that is evaluated": f"{{_target_:pydantic.TypeAdapter,type:{CODE}}}",
    "a file of pickles": "{_target_:pydantic.deprecated.parse.load_file,path:evil.pkl,allow_pickle:true,proto:pickle}",
    "a lexer of a file": "{_target_:pygments.lexers.load_lexer_from_file,filename:evil.py}",
    "a formatter of a file": "{_target_:pygments.formatters.load_formatter_from_file,filename:evil.py}",
    "a library": "{_target_:torch.cuda.CUDAPluggableAllocator,path_to_so_file:evil.so,alloc_fn_name:a,free_fn_name:b}",
    "a class by its name": "{_target_:lightning_utilities.core.imports.RequirementCache,requirement:a,module:evil}",
    "a package by its name": "{_target_:lightning.pytorch.utilities.parsing.AttributeDict}",
    "an expression": f"{{_target_:sympy.sympify,a:{CODE}}}",
    "a template": "{_target_:jinja2.Template,source:x}",
    "a program": "{_target_:psutil.Popen,args:[touch,canary]}",
    "a download": "{_target_:torch.hub.load_state_dict_from_url,url:'file:evil.pt'}",
    "a query": "{_target_:pandas.eval,expr:'@x'}",
    "a file that is written": "{_target_:pandas.ExcelWriter,path:canary}",
    "an archive": "{_target_:numpy.lib.npyio.NpzFile,fid:evil.npy}",
    "a database": "{_target_:sqlalchemy.create_engine,url:'sqlite:///canary'}",
    "a repository": "{_target_:git.Repo.init,path:canary}",
    "a loaded network": "{_target_:torch.jit.load,f:evil.pt}",
    "a checkpoint": "{_target_:torch.nn.Module.load_state_dict,state_dict:{}}",
    "the way of modules": "{_target_:torch.nn.modules.module.torch.hub.load,repo_or_dir:.,model:x,source:local}",
    "a way of an own module": f"{{_target_:{MINE}.torch.nn.Module.load_state_dict}}",
    "a method of an own class": f"{{_target_:{MINE}.Net.load_state_dict,state_dict:{{}}}}",
    "partial": "{_target_:functools.partial,_partial_:true,_args_:['${oc.env:HOME}']}",
    "positional arguments": "{_target_:builtins.exec,_args_:[1]}",
    "no recursion": "{_target_:webbrowser.open,_recursive_:false,_convert_:all,url:x}",
    "a module that acts when it is imported": "{_target_:antigravity.fly}",
    "a test that acts when it is imported": "{_target_:test.autotest.main}",
    "inside of what is allowed": f"{{_target_:torch.nn.Sequential,_args_:[{{_target_:{MINE}.text,a:{CALL}}}]}}",
    "a private name": "{_target_:torch.nn.modules._functions.SyncBatchNorm}",
    "a long name": "{_target_:" + ".".join(["mine"] * 110) + "}",
    "by interpolation": "{_target_:'${tags.0}',command:'touch canary'}",
    "a function that writes": "{_target_:leyden.trainer.runs.folder.freeze,run_dir:canary,values:{}}",
}  # fmt: skip

FILE = "hydra.job_logging.handlers.file.filename"
NODE = {
    "a class that evaluates": (["+hydra.callbacks.a={_target_:pydantic.TypeAdapter,type:x}"], "a._target_"),
    "a callback by an unknown": (["+hydra.callbacks.a._target_='${hydra:job.num}'"], "hydra.callbacks.a._target_"),
    "a function in a callback": (["+hydra.callbacks.a={_target_:torch.nn.ReLU,b:{_target_:torch.load}}"], "b._target_"),
    "an own class as the sweeper": ([f"hydra.sweeper._target_={MINE}.Net"], "hydra.sweeper._target_"),
    "a function of a plugin": (["hydra.launcher._target_=hydra_plugins.os.system"], "hydra.launcher._target_"),
    "a search space": (["+hydra.sweeper.custom_search_space=torch.nn.init.zeros_"], "custom_search_space"),
    "another file of logging": (["hydra/job_logging=default", f"{FILE}=canary"], FILE),
    "another class of logging": (
        ["hydra/job_logging=default", "hydra.job_logging.handlers.file.class=logging.handlers.RotatingFileHandler"],
        "hydra.job_logging.handlers.file.class"),
    "an own class of logging": (
        ["hydra/job_logging=default", f"hydra.job_logging.handlers.file.class={MINE}.Net"],
        "hydra.job_logging.handlers.file.class"),
    "an object as a level": (
        ["hydra/job_logging=default", "hydra.job_logging.root.level='ext://antigravity.fly'"],
        "hydra.job_logging.root.level"),
    "a filter of logging": (
        ["hydra/job_logging=default", "+hydra.job_logging.filters.a={class:os.system}"],
        "hydra.job_logging.filters.a.class"),
    "caches of bytecode": (["+hydra.job.env_set.PYTHONPYCACHEPREFIX=x"], "export PYTHONPYCACHEPREFIX="),
    "a search path of Python's": (["hydra.searchpath=[pkg://antigravity]"], "hydra.searchpath"),
    "a search path of Python's tests": (["hydra.searchpath=[pkg://test.autotest]"], "hydra.searchpath"),
    "a search path of a program": (["hydra.searchpath=[pkg://pytest.__main__]"], "hydra.searchpath"),
}  # fmt: skip
