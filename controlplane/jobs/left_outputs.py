"""Finds what stages of earlier jobs have left, for job files and promotions that read it."""

from __future__ import annotations

from django.utils.translation import gettext as _

from controlplane.accounts.models import Project
from controlplane.jobs.flow import LeftOutput
from controlplane.jobs.models import Output, Stage
from controlplane.jobs.values import shown
from controlplane.pools.models import Pool


def left(project: Project, pool: Pool, job: int, stage: str, output: str, digest: str) -> LeftOutput:
    """Return what a stage of a job of this project has left last under this name, for a job in this pool."""
    of = Stage.objects.select_related("job__pool").filter(job__number=job, job__project=project, name=stage).first()
    found = Output.objects.filter(stage=of, name=output, **({"digest": digest} if digest else {}))
    newest = found.order_by("-at").first() if of else None
    if of is None or newest is None:
        said = _("no stage {stage} of a job #{job} of project {project} has left an output {output}")
        return LeftOutput("", "", said.format(stage=shown(stage), job=job, project=project.name, output=shown(output)))
    storage = of.job.pool.storage_path
    if storage and storage != pool.storage_path:
        said = _("it lies on the storage that nodes of pool {other} share, which those of pool {pool} do not have")
        return LeftOutput("", "", said.format(other=of.job.pool.name, pool=pool.name))
    return LeftOutput(newest.digest, f"{storage}/{job}/outputs/{stage}/{output}" if storage else "")
