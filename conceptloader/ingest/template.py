"""Templates in Jinja, rendered in a sandbox: of conversations, and of what is put in front of documents."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from conceptloader.base.packages import need
from conceptloader.errors import ConfigError


def sandbox(option: str, **settings: Any) -> Any:
    """Jinja as chat templates have it. option: that asks for it; settings: of the environment."""
    need("jinja2", f"{option}: the jinja2 package is not installed")
    module = need("jinja2.sandbox", option)
    environment = module.ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"], **settings)
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    return environment


def without_null(value: Any) -> Any:
    """Objects without the keys that have no value, which is how rows of a table lack one."""
    if isinstance(value, dict):
        return {key: without_null(item) for key, item in value.items() if item is not None}
    return [without_null(item) for item in value] if isinstance(value, list) else value


class Prefix:
    """What is put in front of a document, by a template over its record. names: of the columns that it may use.

    Raises: ConfigError for a template that is none.
    """

    def __init__(self, template: str) -> None:
        jinja = need("jinja2", "prefix: the jinja2 package is not installed")
        # The text is as it is written, white space and the last line feed included.
        environment = sandbox("prefix", undefined=jinja.StrictUndefined, keep_trailing_newline=True)
        del environment.filters["random"], environment.globals["lipsum"]  # a build gives the same bytes again
        try:
            tree = environment.parse(template)
            self.names: frozenset[str] = frozenset(need("jinja2.meta", "prefix").find_undeclared_variables(tree))
            self._template = environment.from_string(template)
        except jinja.TemplateError as error:
            raise ConfigError(
                "prefix", f"a template that is not Jinja ({error})", "a Jinja template", "correct --prefix"
            ) from error
        if not template or any("\\n" in data.data for data in tree.find_all(jinja.nodes.TemplateData)):
            found = "a backslash and an n in the text" if template else "an empty template"
            raise ConfigError(
                "prefix",
                str(found),
                "a template",
                "pass a prefix with a line feed, such as $'\\n' of bash, or {{ '\\n' }}",
            )

    def render(self, record: Mapping[str, Any]) -> str:
        """Of a record by column, as JSON or parquet have it. Raises: ValueError."""
        given = without_null({name: record[name] for name in self.names if name in record})
        there = ", ".join(sorted(name for name in record if record[name] is not None)) or "no column that it names"
        try:
            text: str = self._template.render(given)
            text.encode("utf-8")
        except Exception as error:  # whatever a template does
            raise ValueError(
                f"the template of the prefix fails: {type(error).__name__}: {error}; the record has {there}: fix the "
                "template, or ask whether there is a value ({% if url is defined %})"
            ) from error
        return text


@lru_cache(maxsize=4)
def load_prefix(template: str) -> Prefix:
    """See `Prefix`, which is compiled once."""
    return Prefix(template)
