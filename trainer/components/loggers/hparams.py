# pyright: reportAttributeAccessIssue=false, reportInvalidTypeForm=false
# (names of protobuf modules are created at import)
"""Records of TensorBoard's HPARAMS plugin.

Why not torch's `hparams`: it sets neither the name of a run nor the varied hyperparameters, so TensorBoard selects the
first five in alphabetical order, and names runs by their folders.
"""

from collections.abc import Collection, Mapping

from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import api_pb2, metadata
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo

Parameters = Mapping[str, int | float | str | bool]
_TYPES = ((bool, api_pb2.DATA_TYPE_BOOL), ((int, float), api_pb2.DATA_TYPE_FLOAT64), (str, api_pb2.DATA_TYPE_STRING))


def records(name: str, parameters: Parameters, varied: Collection[str], metrics: Collection[str]) -> list[Summary]:
    """Records of experiment, start and end of a run. Arguments: see `experiment` and `start_row`."""
    return [experiment(parameters, varied, metrics), start_row(name, parameters), end_row(True)]


def experiment(parameters: Parameters, varied: Collection[str], metrics: Collection[str]) -> Summary:
    """The columns of the table.

    Args:
        parameters: hyperparameters and a value of each.
        varied: hyperparameters that differ between the runs of the experiment, listed first.
        metrics: tags of scalars, in the order of the columns.
    """
    infos = [
        api_pb2.HParamInfo(name=key, type=_type(value), differs=key in varied) for key, value in parameters.items()
    ]
    columns = [api_pb2.MetricInfo(name=api_pb2.MetricName(tag=tag)) for tag in metrics]
    content = HParamsPluginData(experiment=api_pb2.Experiment(hparam_infos=infos, metric_infos=columns))
    return _summary(metadata.EXPERIMENT_TAG, content)


def start_row(name: str, parameters: Parameters) -> Summary:
    """A row of the table, by the run's name there."""
    start = SessionStartInfo(group_name=name)
    for key, value in parameters.items():
        kind = "bool" if isinstance(value, bool) else "string" if isinstance(value, str) else "number"
        setattr(start.hparams[key], f"{kind}_value", value)
    return _summary(metadata.SESSION_START_INFO_TAG, HParamsPluginData(session_start_info=start))


def end_row(success: bool) -> Summary:
    """How a row's run ended."""
    end = SessionEndInfo(status=api_pb2.STATUS_SUCCESS if success else api_pb2.STATUS_FAILURE)
    return _summary(metadata.SESSION_END_INFO_TAG, HParamsPluginData(session_end_info=end))


def _type(value: int | float | str | bool) -> int:
    return next(code for kinds, code in _TYPES if isinstance(value, kinds))


def _summary(tag: str, data: HParamsPluginData) -> Summary:
    described = metadata.create_summary_metadata(data)
    return Summary(value=[Summary.Value(tag=tag, metadata=described, tensor=metadata.NULL_TENSOR)])
