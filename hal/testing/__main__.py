"""`python -m hal.testing`: every backend that runs on this machine against the contract, where there is no pytest."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

from hal.common.contract.errors import BackendError
from hal.common.contract.quiet import describe_error

from .case import FULL, SMALL, Profile
from .suite import conformance_cases
from .targets import Target, find_targets

FAILED, UNUSABLE = 1, 2
PROFILES = {"full": FULL, "small": SMALL}


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where every case passes, 1 with a line for each that fails, 2 where nothing that was asked for can run here."""
    parser = argparse.ArgumentParser(prog="python -m hal.testing", description="Hold backends to the contract on this machine.")
    parser.add_argument("--platform", metavar="NAME", help="only the backends of this platform")
    parser.add_argument("--backend", metavar="NAME", help="only this backend")
    parser.add_argument("--profile", choices=PROFILES, default="full", help="how many cases")
    asked = parser.parse_args(arguments)
    try:
        targets = [target for target in find_targets(asked.backend) if asked.platform in (None, target.device.platform)]
    except (ValueError, BackendError) as error:
        return _refuse(str(error))
    if not targets:
        return _refuse(f"no backend of platform {asked.platform!r} runs here; hal doctor says why")
    failures = [failure for target in targets for failure in _check(target, PROFILES[asked.profile])]
    print("\n".join(failures) if failures else "all passed")
    return FAILED if failures else 0


def _refuse(message: str) -> int:
    print(f"hal.testing: {message}", file=sys.stderr)
    return UNUSABLE


def _check(target: Target, profile: Profile) -> Iterator[str]:
    cases = conformance_cases(target.backend, profile)
    print(f"{target.id}: {len(cases)} cases")
    for case in cases:
        try:
            case.check(target.backend(target.device))
        except Exception as error:  # noqa: BLE001 - a backend may raise anything, and the other cases are still to be seen
            yield f"{target.id}-{case.id}: {describe_error(error)}"


if __name__ == "__main__":
    sys.exit(main())
