"""Push an exported folder to the hub, by ``huggingface_hub`` alone: its tokens, its endpoint, its retries."""

from pathlib import Path
from typing import cast

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

from bertflow.errors import UsageError
from bertflow.export.record import read_record

HTTP_ERRORS = cast(tuple[type[Exception], ...], HfHubHTTPError.__bases__)
"""Of the HTTP library that ``huggingface_hub`` is built on, which changed with its versions; and OSError."""
REFUSALS: tuple[type[Exception], ...] = (*HTTP_ERRORS, HFValidationError, OfflineModeIsEnabled)


def push(folder: Path, repository: str, private: bool = False) -> str:
    """Upload an export as one commit; the repository is made if there is none.

    Args:
        folder: What ``bertflow export`` wrote.
        repository: ``owner/name``.
        private: Whether a repository that is made here is private.

    Returns:
        The address of the commit.

    Raises:
        UsageError: If the hub refuses, cannot be reached, or the name is none.
    """
    require_name(repository)
    description = read_record(folder)["describe"]
    api = HfApi(library_name="bertflow")
    message = f"{description['pooling']} of {description['encoder']}, {description.get('calibrator', 'as it comes')}"
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        commit = api.upload_folder(folder_path=folder, repo_id=repository, commit_message=message)
    except REFUSALS as error:
        reason = " ".join(str(error).split()).split(". ")[0].rstrip(".")
        raise UsageError(
            f"{repository!r} could not be pushed to {api.endpoint}: {reason}. The export is complete in {folder}: "
            "check the name, the network and `hf auth login`, then push it again with `hf upload`."
        ) from error
    return str(commit.commit_url)


def require_name(repository: str) -> None:
    """Refuse what is no ``owner/name``.

    Raises:
        UsageError: With what was wanted.
    """
    owner, slash, name = repository.partition("/")
    if not (owner and slash and name) or "/" in name:
        raise UsageError(f"--push wants OWNER/NAME, got {repository!r}.")
