"""The production job types of D0 and CDF: ``dzero_monte_carlo``, ``cdf_monte_carlo`` and ``dzero_reconstruction``."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from adapters import EVENTS, SLICING, Attribute, Kind, PlannedJob
from handlers.inputs import INPUT_ATTRIBUTES, Groups, Input, InputsAdapter, NoFiles
from handlers.runjob import RUNJOB_ATTRIBUTES, RunjobAdapter, phases_attribute, program_attribute

_D0_PHASES = ("generator", "d0gstar", "d0sim", "d0reco", "recoanalyze")


class DzeroMonteCarloAdapter(RunjobAdapter):
    """Makes D0 Monte-Carlo events: generator, d0gstar, d0sim, d0reco, recoanalyze."""

    jobType = "dzero_monte_carlo"
    requestIdAttribute = "runjob_requestid"
    template = "d0mc.ini.j2"
    phases = _D0_PHASES
    attributes = (
        Attribute("runjob_requestid", "Id of the request in the experiment's request system.", Kind.INTEGER,
                  required=True, minimum=1),
        Attribute("runjob_numevts", "How many events the grid job makes.", Kind.INTEGER, "events", required=True,
                  minimum=1),
        Attribute("d0_release_version", "Release of the experiment's software, such as p14.07.00.", required=True),
        Attribute("minbias_dataset", "Dataset of minimum-bias events, which d0sim lays over the simulated ones.",
                  default=""),
        Attribute("cardfiles", "Version of the card files, where the generator is run.", default=""),
        *SLICING,
        phases_attribute(_D0_PHASES),
        program_attribute("mc_runjob/mc_runjob"),
        *RUNJOB_ATTRIBUTES,
    )  # fmt: skip

    def getSize(self) -> int | None:
        size: int = self.request["runjob_numevts"]
        return size


_CDF_PHASES = ("cdfgen", "cdfsim", "trgsim", "production")


class CdfMonteCarloAdapter(RunjobAdapter):
    """Makes CDF Monte-Carlo events: cdfgen, cdfsim, trgsim, production."""

    jobType = "cdf_monte_carlo"
    requestIdAttribute = "request_id"
    template = "cdfmc.ini.j2"
    phases = _CDF_PHASES
    attributes = (
        Attribute("request_id", "Id of the request in the experiment's request system.", Kind.INTEGER, required=True,
                  minimum=1),
        EVENTS,
        Attribute("cdf_release_version", "Release of the experiment's software.", required=True),
        Attribute("run_number", "Run whose conditions of detector and beam are simulated.", Kind.INTEGER, minimum=1),
        *SLICING,
        phases_attribute(_CDF_PHASES),
        program_attribute("mcproduction/run"),
        *RUNJOB_ATTRIBUTES,
    )  # fmt: skip


_RECO_PHASES = ("d0reco", "recoanalyze")


class DzeroReconstructionAdapter(InputsAdapter, RunjobAdapter):
    """Reconstructs D0 data again, with a newer release."""

    jobType = "dzero_reconstruction"
    requestIdAttribute = "processid"
    template = "d0reco.ini.j2"
    phases = _RECO_PHASES
    attributes = (
        *INPUT_ATTRIBUTES,
        Attribute("files_per_local_job", "Input files of one local job.", Kind.INTEGER, "files", default=1, minimum=1),
        Attribute("events_per_file", "Events of one input file, by which progress is counted; without it, progress is "
                  "not counted.", Kind.INTEGER, "events", minimum=1),
        Attribute("processid", "Id of the processing in the data catalogue.", Kind.INTEGER, required=True, minimum=1),
        Attribute("appfamily", "Family of the application in the data catalogue.", default="reconstruction"),
        Attribute("appname", "Name of the application in the data catalogue.", default="d0reco"),
        Attribute("appversion", "Version of the application in the data catalogue.", required=True),
        Attribute("d0_release_version", "Release of the experiment's software, such as p17.09.06.", required=True),
        phases_attribute(_RECO_PHASES),
        program_attribute("mc_runjob/mc_runjob"),
        *RUNJOB_ATTRIBUTES,
    )  # fmt: skip

    def cutGroups(self, inputs: Sequence[Input]) -> Groups:
        share: int = self.request["files_per_local_job"]
        return [inputs[start : start + share] for start in range(0, len(inputs), share)]

    def checkErrors(self) -> Iterable[str]:
        faults = list(super().checkErrors())
        try:
            return faults if self.groups else [*faults, "there are no inputs"]
        except NoFiles as error:
            return [*faults, str(error)]

    def prepareWorkArea(self, workArea: Path) -> None:
        super().prepareWorkArea(workArea)
        self.writeInputs(workArea)

    def getCommandAndArguments(self, localJob: PlannedJob) -> Sequence[str]:
        # For its check only: the payload finds the inputs in the list.
        self.pickGroup(localJob)
        return super().getCommandAndArguments(localJob)

    def getEnvironment(self) -> Mapping[str, str]:
        events = self.request["events_per_file"]
        return {"SAMGRID_EVENTS_PER_FILE": str(events)} if events else {}
