"""The metaclass of structs whose fields are options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from stowhand.errors import suggest


class SuggestingMeta(msgspec.StructMeta):
    """Metaclass of structs that suggest the nearest field for an unknown one."""

    if not TYPE_CHECKING:  # a type checker would accept any argument of such a struct

        def __call__(self, *args: Any, **options: Any) -> Any:
            try:
                return super().__call__(*args, **options)
            except TypeError:
                for name in options:
                    if name not in self.__struct_fields__:
                        raise TypeError(
                            f"{self.__name__}: no option {name!r}{suggest(name, self.__struct_fields__)}"
                        ) from None
                raise
