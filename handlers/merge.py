"""Job types ``dzero_merge`` and ``cdf_concatenate``: many small files become few large ones."""

from adapters import Attribute, Kind
from handlers.merging import MergeAdapter, merge_attributes


class DzeroMergeAdapter(MergeAdapter):
    """D0 files of one request, merged to the size that is stored."""

    jobType = "dzero_merge"
    requestIdAttribute = "runjob_requestid"
    attributes = (
        Attribute("runjob_requestid", "Id of the request whose files are merged.", Kind.INTEGER, minimum=1),
        *merge_attributes(1000),
    )


class CdfConcatenateAdapter(MergeAdapter):
    """CDF files of one request, merged to the size that is stored."""

    jobType = "cdf_concatenate"
    requestIdAttribute = "request_id"
    attributes = (
        Attribute("request_id", "Id of the request whose files are merged.", Kind.INTEGER, minimum=1),
        *merge_attributes(2000),
    )
