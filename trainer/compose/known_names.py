"""Names of Lightning, Keras, timm, Hugging Face, torchrun, Slurm and Ultralytics, with Leyden's for each.

Tables, and look-ups in them. `{}` in a remedy is the user's value.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..base.errors import nearest

_SAME_VALUE: Mapping[str, str] = {
    "trainer.max_epochs": "epochs epoch num_epochs n_epochs nb_epochs nepochs num_train_epochs total_epochs max_epoch",
    "trainer.max_steps": "steps num_steps total_steps max_iters max_iter iterations num_iterations train_steps",
    "trainer.accumulate_grad_batches": "accumulate gradient_accumulation_steps gradient_accumulation grad_accum "
    "grad_accum_steps accum_steps accum_iter accumulation_steps grad_accumulation update_freq",
    "trainer.gradient_clip_val": "grad_clip clip_grad clip gradient_clip max_grad_norm grad_clip_norm clip_norm "
    "clip_grad_norm clip_value clipnorm gradient_clipping",
    "trainer.sync_batchnorm": "sync_bn syncbn sync_batch_norm",
    "trainer.limit_train_batches": "steps_per_epoch",
    "trainer.limit_val_batches": "validation_steps",
    "trainer.val_check_interval": "eval_steps",
    "trainer.activation_checkpointing": "gradient_checkpointing grad_checkpointing",
    "trainer.check_val_every_n_epoch": "val_every eval_every validation_freq val_freq eval_freq val_interval",
    "trainer.log_every_n_steps": "log_interval logging_steps log_every print_freq log_freq",
    "trainer.fast_dev_run": "dry_run dryrun smoke_test",
    "trainer.compile": "torch_compile torchcompile",
    "trainer.enable_progress_bar": "progress progress_bar",
    "optimizer.lr": "learning_rate lr0 base_lr init_lr initial_lr lrate learningrate",
    "optimizer.weight_decay": "wd l2",
    "optimizer.momentum": "mom",
    "optimizer.layer_decay": "layerwise_lr_decay llrd layer_lr_decay",
    "schedule": "scheduler sched lr_scheduler lr_schedule lr_scheduler_type",
    "schedule.warmup_steps": "warmup warmup_ratio num_warmup_steps warmup_iters lr_warmup_steps",
    "task.loss": "loss loss_fn loss_function loss_type criterion",
    "task.label_smoothing": "smoothing label_smoothing_factor",
    "task.target_threshold": "bce_target_thresh",
    "batch_size": "b bs batch batchsize train_batch_size global_batch_size mini_batch_size total_batch_size "
    "per_device_train_batch_size batch_size_per_gpu",
    "seed": "seed_everything random_seed manual_seed random_state",
    "topology.devices_per_node": "gpus num_gpus n_gpus n_gpu ngpus num_devices nproc nproc_per_node num_processes np "
    "ntasks ntasks_per_node gpus_per_node world_size",
    "topology.nodes": "num_nodes nnodes num_machines n_nodes",
    "topology.slurm.partition": "partition",
    "topology.slurm.account": "account",
    "topology.slurm.qos": "qos",
    "dataset.num_workers": "j workers dataloader_num_workers n_workers loader_workers num_loader_workers",
    "dataset.val_fraction": "val_split validation_split val_ratio val_size val_frac valid_pct train_val_split",
    "dataset.image_size": "imgsz img_size input_size resolution image_resolution crop_size",
    "model": "a arch architecture model_name net network backbone",
    "model.hidden": "hidden_size hidden_sizes hidden_dim hidden_units",
    "model.dropout": "drop drop_rate dropout_p dropout_rate p_dropout",
    "model.drop_path": "drop_path drop_path_rate stochastic_depth stochastic_depth_prob",
    "callbacks.checkpoint.save_top_k": "save_total_limit checkpoint_hist",
    "callbacks.checkpoint.every_n_epochs": "save_every save_interval save_freq save_period",
    "callbacks.checkpoint.every_n_steps": "save_steps",
    "hydra.run.dir": "output_dir save_dir default_root_dir out_dir log_dir logdir run_dir exp_dir work_dir logging_dir "
    "output",
    "init_from": "finetune init_checkpoint initial_checkpoint load_weights pretrained_path weights",
    "strategy": "distributed_backend parallel_strategy",
    "optimizer": "opt optim",
}
"""Leyden's key, and its names elsewhere whose values mean the same."""

_MULTI_WORKER = "topology.devices_per_node=2"
_PRECISION = {"fp32": "32-true", "float32": "32-true", "32": "32-true", "full": "32-true", "fp16": "16-mixed",
              "float16": "16-mixed", "16": "16-mixed", "half": "16-mixed", "amp": "16-mixed", "mixed": "16-mixed",
              "mixed_float16": "16-mixed", "bf16": "bf16-mixed", "bfloat16": "bf16-mixed", "mixed_bfloat16":
              "bf16-mixed", "64": "64-true", "fp64": "64-true", "float64": "64-true", "double": "64-true"}  # fmt: skip
_DEVICE = {"gpu": "cuda", "cuda:0": "cuda", "0": "cuda"}
_RESUME = "leyden resume {}"
_LOGGER_CLASS = {"comet": "CometLogger", "neptune": "NeptuneLogger"}
_LOGGERS = ("wandb", "mlflow", *_LOGGER_CLASS)
"""The first are choices of `logger`."""
_LOGGER_PACKAGE = {"comet": "comet_ml"}
_FSDP = f"strategy=fsdp {_MULTI_WORKER}"
_DDP = f"strategy=ddp {_MULTI_WORKER}"
_RENDEZVOUS = "topology.launcher=node topology.nodes=2 strategy=ddp"


def _logger(name: str) -> str:
    if name not in _LOGGER_CLASS:
        return f"pip install 'leyden[{name}]' && leyden 'logger=[default,{name}]'"
    package = _LOGGER_PACKAGE.get(name, name)
    target = f"+logger.{name}._target_=lightning.pytorch.loggers.{_LOGGER_CLASS[name]}"
    return f"pip install {package} && leyden {target}"


CHOICES: Mapping[str, Mapping[str, str]] = {
    "strategy": {
        **dict.fromkeys(("deepspeed", "deepspeed_stage_1", "deepspeed_stage_2", "deepspeed_stage_3", "zero", "zero1",
                         "zero2", "zero3", "deepspeed_stage_2_offload", "deepspeed_stage_3_offload", "fsdp2",
                         "fsdp_native", "fully_sharded", "fairscale", "sharded", "ddp_sharded", "full_shard",
                         "fsdp_cpu_offload"), _FSDP),
        **dict.fromkeys(("dp", "dataparallel", "data_parallel", "horovod", "ddp_spawn", "ddp_fork", "ddp_notebook",
                         "distributed", "distributeddataparallel", "mirrored", "bagua"), _DDP),
        "ddp_find_unused_parameters_true": f"strategy=ddp strategy.find_unused_parameters=true {_MULTI_WORKER}",
        "ddp_find_unused_parameters_false": _DDP,
        "shard_grad_op": f"{_FSDP} strategy.reshard_after_forward=false",
        "hybrid_shard": "strategy=hsdp topology.nodes=2 topology.launcher=node topology.devices_per_node=2",
        **dict.fromkeys(("none", "null", "auto", "single_device"), "strategy=single"),
        "parameter_server": "strategy=asgd", "parameterserver": "strategy=asgd", "downpour": "strategy=asgd",
        "eamsgd": "strategy=easgd", "diloco": "strategy=local_sgd", "localsgd": "strategy=local_sgd",
        "post_local_sgd": "strategy=local_sgd", "tensor_parallel": f"strategy=hybrid {_MULTI_WORKER}",
    },
    "logger": {
        **{name: _logger(name) for name in _LOGGER_CLASS},
        "wandblogger": _logger("wandb"), "weights_and_biases": _logger("wandb"), "mlf": _logger("mlflow"),
        "tensorboard": "logger=default", "tb": "logger=default", "csv": "logger=default", "true": "logger=default",
        **dict.fromkeys(("false", "off", "no", "null"), "logger=none"),
    },
    "optimizer": {
        "momentum": "optimizer=sgd", "nesterov": "optimizer=sgd optimizer.nesterov=true", "rms": "optimizer=rmsprop",
        **{name.lower(): f"optimizer._target_=torch.optim.{name}" for name in
           ("NAdam", "RAdam", "Adamax", "Adadelta", "Adafactor", "Rprop", "ASGD")},
    },
    "schedule": {
        "step": "schedule=multistep schedule.milestones=[10,20]", "cosineannealinglr": "schedule=cosine",
        "steplr": "schedule=multistep schedule.milestones=[10,20]", "cosine_annealing": "schedule=cosine",
        "poly": "schedule=polynomial", "reduce_on_plateau": "schedule=plateau", "reducelronplateau": "schedule=plateau",
        "one_cycle": "schedule=onecycle", "onecyclelr": "schedule=onecycle", "trapezoid": "schedule=wsd",
        "multisteplr": "schedule=multistep schedule.milestones=[10,20]", "cosine_with_warmup":
        "schedule=cosine schedule.warmup_steps=100", "none": "schedule=constant", "fixed": "schedule=constant",
        **dict.fromkeys(("exponential", "exponentiallr", "exp"),
                        "schedule._target_=torch.optim.lr_scheduler.ExponentialLR +schedule.gamma=0.95 "
                        "schedule.interval=epoch"),
    },
    "dataset": {
        "fake": "dataset=synthetic", "random": "dataset=synthetic",
        "fakedata": "dataset=synthetic", "folder": "dataset=image_folder", "imagefolder": "dataset=image_folder",
    },
    "model": {
        "vit_s_16": "model=vit_small", "vit_l_16": "model=timm model.name=vit_large_patch16_224",
        "resnet152": "model=resnet50 model.depth=152", "vit_base_patch16_224": "model=vit_base",
        "vit_small_patch16_224": "model=vit_small", "vit_b_16": "model=vit_base", "lenet": "model=lenet5",
        "vgg": "model=vgg16", "cnn": "model=lenet5", "resnet": "model=resnet18", "vit": "model=vit_small",
    },
    "callbacks": {
        "null": "callbacks=none", "modelcheckpoint": "callbacks=default",
        "earlystopping": "callbacks=[default,early_stopping]",
        "early_stop": "callbacks=[default,early_stopping]", "checkpoint": "callbacks=default",
        "modelema": "callbacks=[default,ema]", "weightaveraging": "callbacks=[default,ema]",
        "stochasticweightaveraging": "callbacks=[default,swa]",
        "richprogressbar": "callbacks=default", "tqdmprogressbar": "callbacks=default", "progress": "callbacks=default",
    },
    "task": {**dict.fromkeys(("null", "classify", "supervised"), "task=classification"), "autoencoder":
             "task=reconstruction model=cots_autoencoder", "focal": "task.loss=focal", "bce": "task.loss=bce",
             "contrastive": "task=simclr augment=simclr", "self_supervised": "task=simclr augment=simclr"},
    "topology": {**dict.fromkeys(("gpu", "cuda", "auto", "single"), "topology=local"), "sbatch": "topology=slurm",
                 "k8s": "topology=kubernetes"},
    "augment": {
        "flip": "augment=crop_flip", "random_crop": "augment=crop", "default": "augment=crop_flip",
        "random_resized_crop": "augment=imagenet", "randomresizedcrop": "augment=imagenet", "rrc": "augment=imagenet",
        "color_jitter": "augment=imagenet", "colorjitter": "augment=imagenet", "randaugment": "augment=rand_augment",
        "ra": "augment=rand_augment", "randomerasing": "augment=random_erasing", "cutout": "augment=random_erasing",
    },
    "hydra/sweeper/sampler": {
        "cmaes": "hydra.sweeper.sampler._target_=optuna.samplers.CmaEsSampler",
        "grid": "hydra/sweeper/sampler=brute_force", "motpe": "hydra/sweeper/sampler=tpe",
        "nsgaii": "hydra.sweeper.sampler._target_=optuna.samplers.NSGAIISampler",
        "qmc": "hydra.sweeper.sampler._target_=optuna.samplers.QMCSampler",
    },
}  # fmt: skip
"""Names of choices in other tools by group, and the overrides that do the same here."""


def switch(on: str, off: str) -> dict[str, str]:
    """What the words for true and for false mean."""
    return {**dict.fromkeys(("true", "1", "yes", "on"), on), **dict.fromkeys(("false", "0", "no", "off"), off)}


_BY_VALUE: Mapping[str, Mapping[str, str]] = {
    "fp16 half amp use_amp use_fp16 native_amp float16": switch("trainer.precision=16-mixed",
                                                                 "trainer.precision=32-true"),
    "bf16 bfloat16 use_bf16": switch("trainer.precision=bf16-mixed", "trainer.precision=32-true"),
    "fp64 double float64": switch("trainer.precision=64-true", "trainer.precision=32-true"),
    "precision mixed_precision dtype torch_dtype": {**{name: f"trainer.precision={ours}" for name, ours in
                                                       _PRECISION.items()}, "": "trainer.precision={}",
                                                    **switch("trainer.precision=16-mixed",
                                                              "trainer.precision=32-true")},
    "accelerator device device_type": {**{name: f"topology.device.kind={ours}" for name, ours in _DEVICE.items()},
                                       "": "topology.device.kind={}"},
    "devices": {"auto": "topology.devices_per_node=1", "-1": "topology.devices_per_node=1",
                "": "topology.devices_per_node={}"},
    "cpu no_cuda use_cpu": switch("topology=cpu", "topology=local"),
    "cuda gpu use_cuda use_gpu": switch("topology.device.kind=cuda", "topology=cpu"),
    "ddp distributed multi_gpu horovod dp dataparallel data_parallel ddp_spawn use_ddp": switch(_DDP,
                                                                                                 "strategy=single"),
    "deepspeed zero fsdp": {**switch(_FSDP, "strategy=single"), "": _FSDP},
    "ema model_ema use_ema": switch("callbacks=[default,ema]", "callbacks=default"),
    "swa use_swa": switch("callbacks=[default,swa]", "callbacks=default"),
    "lookahead use_lookahead": switch("callbacks=[default,lookahead]", "callbacks=default"),
    "swa_epoch_start swa_start": {"": "callbacks=[default,swa] callbacks.swa.start={}"},
    "ema_decay model_ema_decay": {"": "callbacks=[default,ema] callbacks.ema.decay={}"},
    "track_grad_norm grad_norm": {"": "trainer.log_grad_norm=true"},
    "early_stopping early_stop": switch("callbacks=[default,early_stopping]", "callbacks=default"),
    "patience early_stopping_patience": {"": "callbacks=[default,early_stopping] callbacks.early_stopping.patience={}"},
    "enable_checkpointing save_checkpoint": switch("callbacks=default", "callbacks=none"),
    "pretrained": {"false": "model.pretrained=null", "": "model.pretrained={}",
                   "true": "model.pretrained=timm:NAME.TAG, such as timm:resnet50.a1_in1k for model=resnet50"},
    "model_name_or_path": {"": "model.pretrained=hub:{}"},
    "warmup_epochs num_warmup_epochs lr_warmup_epochs": {"": "schedule.warmup_steps={}ep"},
    "cooldown_epochs": {"": "schedule.cooldown_steps={}ep"},
    "cos_lr": switch("schedule=cosine", "schedule=constant"),
    "mixup mixup_alpha": {"": "augment=mixup augment.batch.mix.mixup={}"},
    "cutmix cutmix_alpha": {"": "augment=cutmix augment.batch.mix.cutmix={}"},
    "reprob erasing": {"": "augment=random_erasing augment.batch.random_erasing.p={}"},
    "aa auto_augment autoaugment": {"": "augment=rand_augment"},
    "hflip fliplr": {"": "augment=crop_flip"},
    "no_aug": switch("augment=none", "augment=crop_flip"),
    "eval_metric metric_for_best_model": {
        **dict.fromkeys(("loss", "eval_loss", "val_loss"),
                        "callbacks.checkpoint.monitor=val/loss callbacks.checkpoint.mode=min"),
        "": "callbacks.checkpoint.monitor=val/acc"},
    "dataset_name": {"": "dataset=hub dataset.source={}"},
    "auto_lr_find lr_find": {"": "leyden find lr"},
    "auto_scale_batch_size": {"": "leyden find batch_size"},
    "print_config": {"": "leyden --cfg job"},
    "nesterov": {"": "optimizer.nesterov={}"},
    "data data_dir data_path data_root dataset_dir train_data_dir train_dir root": {
        "": "dataset=image_folder dataset.root={}"},
    "resume resume_from resume_from_checkpoint ckpt_path ckpt checkpoint load_checkpoint restore": {
        "true": "leyden resume RUN", "": _RESUME},
    **{name: {"": _logger(name)} for name in _LOGGERS},
    "use_wandb wandb_project project": {"": _logger("wandb")},
    "report_to log_with": {**{name: _logger(name) for name in _LOGGERS}, "tensorboard": "logger=default",
                           "none": "logger=none", "comet_ml": _logger("comet")},
    "tensorboard tb": switch("logger=default", "logger=none"),
    "rdzv_endpoint rdzv_backend rdzv_id master_addr master_port node_rank machine_rank standalone":
        {"": _RENDEZVOUS},
    "name run_name exp_name experiment_name": {"": "tags=[{}]"},
    "gres": {"": "topology.slurm.gres={}"},
    "time time_min timelimit walltime": {"": "topology.slurm.time_min={}"},
}  # fmt: skip
"""Names whose remedy depends on the value; "" stands for every other value."""

_VALUES_HERE: Mapping[str, Mapping[str, str]] = {
    "trainer.precision": _PRECISION,
    "topology.device.kind": {**_DEVICE, **dict.fromkeys(("mps", "tpu", "xpu", "hpu", "npu", "rocm"), "cpu")},
    "task.loss": {
        **dict.fromkeys(("ce", "crossentropy", "crossentropyloss", "categorical_crossentropy", "softmax",
                         "sparse_categorical_crossentropy", "nll"), "cross_entropy"),
        **dict.fromkeys(("binary_crossentropy", "bceloss", "bcewithlogitsloss", "bce_with_logits"), "bce"),
        "focal_loss": "focal", "focalloss": "focal"},
}  # fmt: skip
"""Values of other tools by Leyden's key, and the one that does the same here."""

_ABSENT: Mapping[str, str] = {
    "do_train do_eval do_predict": "is not needed: `leyden` trains, validates and tests; `leyden eval RUN` and "
    "`leyden predict RUN PHOTOS` use the trained run",
    "overwrite_output_dir exist_ok": "is not needed: each run has a folder of its own",
    "remove_unused_columns ignore_mismatched_sizes eval_strategy evaluation_strategy save_strategy": "is not needed: "
    "trainer.check_val_every_n_epoch and callbacks.checkpoint say when",
    "pin_mem pin_memory persistent_workers local_rank rank": "is not a setting here: Leyden decides it",
    "load_best_model_at_end": "is not needed: `leyden eval RUN --best` takes the best checkpoint",
    "push_to_hub hub_model_id hub_token": "is not here: Leyden uploads nothing; `leyden export RUN` writes the weights",
    "tpu_cores tpu ipus hpus": "is not here: Leyden trains on CUDA GPUs and CPUs",
    "reload_dataloaders_every_n_epochs": "is not here: the data are opened once",
    "mosaic close_mosaic single_cls box dfl iou conf": "is not here: it belongs to detection, and Leyden classifies",
    "validation_dir val_dir valid_dir": "is not needed: dataset.root is the folder around train/ and val/",
    "metrics=[accuracy] metrics=accuracy metrics=[acc] metrics=acc": "is not needed: accuracy is always measured; "
    "task.metrics=[f1,auroc] adds others",
    "loss=mse loss=mae loss=l1 loss=l2 criterion=mse": "is of task=reconstruction; task.loss of classification is "
    "cross_entropy, bce or focal",
    "storage study_name load_if_exists": "is not needed: a study is SWEEP/study.journal, and `leyden resume SWEEP` "
    "goes on with it",
    "max_failure_rate": "is not needed: failed trials end no study; with hydra.sweeper.fail_fast=true the first does",
    "search_space custom_search_space": "is hydra.sweeper.params here, or the overrides of the command",
    "max_train_samples": "is not here: trainer.limit_train_batches counts optimizer steps",
}
"""Names, or names with a value, of other tools that have no key here, and why."""

DATASET_DECLARES = (
    "num_classes", "n_classes", "nb_classes", "num_labels", "nclasses", "nc", "num_outputs", "in_channels", "in_chans",
    "input_channels", "image_channels", "img_channels", "num_channels", "n_channels",
)  # fmt: skip
"""Model arguments of other tools that the dataset declares here, as `classes` and `image_shape`."""

_KEYS = {word: key for key, words in _SAME_VALUE.items() for word in words.split()}
_WHY_ABSENT = {
    **{word: why for words, why in _ABSENT.items() for word in words.split()},
    **dict.fromkeys(DATASET_DECLARES, "is not needed: the dataset declares its classes and the shape of its images"),
}
_VALUES = {word: remedies for words, remedies in _BY_VALUE.items() for word in words.split()}


@dataclass(frozen=True)
class Known:
    """A name known from another tool."""

    key: str
    """Leyden's key, or "" if more than one key is needed."""
    remedy: str
    """The equivalent: overrides, or a sentence with a command; "" if there is none for this value."""
    why: str = ""
    """Why there is no such key here."""


def find_equivalent(word: str, value: str | None) -> Known | None:
    """Leyden's equivalent of a name of another tool; None for an unknown name.

    Args:
        word: the last part of a key, or a flag without its dashes.
        value: as spelled on the command line; None: no value.
    """
    name = word.lower().replace("-", "_")
    why = _WHY_ABSENT.get(name) or _WHY_ABSENT.get(f"{name}={value}")
    if why:
        return Known("", "", why)
    if name in ("device", "accelerator") and re.search(r"\d *,", value or ""):
        name = "devices"
    if name in _KEYS or name in CHOICES:
        key = _KEYS.get(name, name)
        if key in CHOICES and value is not None and value.lower() in CHOICES[key]:
            return Known(key, CHOICES[key][value.lower()])
        return Known(key, f"{key}={_value(key, value)}" if value else "")
    remedies = _VALUES.get(name)
    if remedies is None:
        return None
    remedy = remedies.get((value or "true").lower(), remedies.get("", ""))
    needs_value = "{}" in remedy and not value
    keys = {
        assignment.partition("=")[0] for one in remedies.values() for assignment in one.split()[:1] if "=" in assignment
    }
    key = next(iter(keys)) if len(keys) == 1 else remedy.partition("=")[0] if "=" in remedy.split(" ")[0] else ""
    return Known(key, "" if needs_value else remedy.replace("{}", _value(key, value)))


def _value(key: str, value: str | None) -> str:
    """The user's value; a list of devices, or "all", as their number."""
    if key == "topology.devices_per_node" and value and not value.lstrip("-").isdigit():
        return str(len(value.strip("[]").split(","))) if "," in value or "[" in value else "1"
    return find_value(key, value or "")[0] or value or "" if key == "task.loss" else value or ""


def photographs_at(path: str) -> str:
    """The overrides that read a folder of photographs."""
    return f"dataset=image_folder dataset.root={shlex.quote(path)}"


def find_choice(group: str, name: str) -> str:
    """The overrides equivalent to a choice of another tool; "" if unknown."""
    choices = CHOICES.get(group, {})
    return choices.get(name.lower()) or choices.get(re.sub(r"[^a-z\d]", "_", name.lower()), "")


_TIMM = re.compile(r"(?P<name>[a-z]\w*\d\w*|(?:convnext|swin|deit|beit|vit|efficientnet|mobilenet|maxvit)\w*)(\.\w+)?")


def timm_choice(name: str, choices: Sequence[str]) -> str:
    """The overrides for a name that looks like one of timm's networks; "" if it does not, or is a misspelled choice."""
    found = _TIMM.fullmatch(name)
    extends = any(name.startswith(choice) for choice in choices)
    if found is None or not (extends or nearest(found["name"], choices) is None):
        return ""
    weights = f" model.pretrained=timm:{name}" if "." in name else ""
    return f"model=timm model.name={found['name']}{weights}"


_TIME = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d\d)")
"""Slurm's [DAYS-][HOURS:]MINUTES:SECONDS."""


def find_value(key: str, value: str) -> tuple[str, str]:
    """Leyden's spelling of a value of another tool, and what to say of it; "" if unknown."""
    time = _TIME.fullmatch(value)
    days, hours, minutes, seconds = (int(part or 0) for part in time.groups()) if time else (0, 0, 0, 0)
    if time and key == "topology.slurm.time_min":
        return str(1440 * days + 60 * hours + minutes + (seconds > 0)), "in minutes"
    if time and key == "trainer.max_time":
        return f"{days + hours // 24:02}:{hours % 24:02}:{minutes:02}:{seconds:02}", ""
    if (key, value) == ("trainer.max_epochs", "-1"):
        return "1000000", "a run may end before by trainer.max_steps, trainer.max_time or early stopping"
    ours = _VALUES_HERE.get(key, {}).get(value.lower(), "")
    return ours, "Leyden trains on CUDA GPUs and on CPUs" if ours == "cpu" else ""


_SPLITS = {"valid": "val", "validation": "val", "eval": "val", "dev": "val", "test": "val"}
_METRICS = {"accuracy": "acc", "top1": "acc", "acc1": "acc", "top5": "acc5", "error": "loss", "cost": "cost"}


def find_metric(name: str, logged: Sequence[str]) -> str | None:
    """The logged metric that a name of another tool (val_loss, eval/accuracy) means."""
    split, _, metric = name.lower().replace("_", "/", 1).partition("/")
    if not metric:
        split, metric = "val", split
    plain = f"{_SPLITS.get(split, split)}/{_METRICS.get(metric, metric)}"
    return plain if plain in logged else nearest(plain, logged)
