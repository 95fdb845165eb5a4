"""``cronjobs schema``: the JSON Schema of cronjobs.yaml, for editors."""

from __future__ import annotations

from cronjobs.desk.cli.output import write
from cronjobs.engine.command.printing import json_text
from cronjobs.engine.config.reference import json_schema


def schema() -> None:
    """Print the JSON Schema of cronjobs.yaml (draft-07), which editors use to complete and check it.

    "cronjobs init" writes the schema to cronjobs.schema.json. The first line of cronjobs.yaml names that file:
    "# yaml-language-server: $schema=cronjobs.schema.json". After an upgrade, write the schema again:
    cronjobs schema > cronjobs.schema.json
    """
    write([json_text(json_schema())])
