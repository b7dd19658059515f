"""``bertflow.fix``: all cosines are 0.9, what can be done? Read, measure, try, judge, decide.

text --> documents --> fitted | put aside (reference, mined pairs)
encoder or vectors --> raw + candidates, fitted --> judged by labels, by mined pairs --> verdict --> Advice
"""

from pathlib import Path

from bertflow.advise.advice import Advice
from bertflow.advise.case import Request
from bertflow.advise.trial import advise
from bertflow.geometry import REPORT
from bertflow.geometry.report import show_page


def fixed(request: Request, output: str | Path | None, open_report: bool) -> Advice:
    """Advise, and write the advice where a folder is named."""
    request.require_usable()
    advice = advise(request)
    if output is None:
        return advice
    advice = advice.saved(output)
    if open_report:
        show_page(Path(output) / "geometry" / REPORT)
    return advice
