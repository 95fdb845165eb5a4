"""Write the wheel's SBOM (PEP 770) when the wheel is built. It lists this version and its dependencies, as CycloneDX.

The wheel bundles no code of others. Its dependencies have version ranges and no versions, because the user's installer
chooses the versions.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOR_DEVELOPERS = {"test", "docs", "dev"}


class Sbom(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self._folder = tempfile.TemporaryDirectory()
        file = Path(self._folder.name) / "cronjobs.cdx.json"
        file.write_text(json.dumps(self._sbom(), indent=2) + "\n", encoding="utf-8")
        build_data["sbom_files"].append(str(file))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        self._folder.cleanup()

    def _sbom(self) -> dict[str, Any]:
        core = self.metadata.core
        extras = [each for name, each in core.optional_dependencies_complex.items() if name not in FOR_DEVELOPERS]
        wanted = [("required", each) for each in core.dependencies_complex.values()]
        wanted += [("optional", each) for extra in extras for each in extra.values()]
        components = [
            {
                "type": "library",
                "bom-ref": f"pkg:pypi/{each.name.lower()}",
                "name": each.name,
                "description": f"any version {each.specifier}".strip(),
                "scope": scope,
                "purl": f"pkg:pypi/{each.name.lower()}",
            }
            for scope, each in wanted
        ]
        ours = f"pkg:pypi/{core.name}@{self.metadata.version}"
        return {
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "version": 1,
            "metadata": {
                "component": {
                    "type": "library",
                    "bom-ref": ours,
                    "name": core.name,
                    "version": self.metadata.version,
                    "description": core.description,
                    "licenses": [{"license": {"id": core.license_expression}}],
                    "purl": ours,
                }
            },
            "components": components,
            "dependencies": [{"ref": ours, "dependsOn": [each["bom-ref"] for each in components]}],
        }
