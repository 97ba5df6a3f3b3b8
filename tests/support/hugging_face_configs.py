"""Published configurations of Hugging Face models: tests/data/hugging_face.yaml."""

from typing import Any

import yaml

from tests.support.paths import TEST_DATA

#: Model -> its configuration, its parameters, and the shipped model that is the same, where one is.
PUBLISHED: dict[str, tuple[dict[str, Any], int, str]] = {
    name: (row["config"], row["parameters"], row.get("ships", ""))
    for name, row in yaml.safe_load((TEST_DATA / "hugging_face.yaml").read_text()).items()
}
