"""What every part of the schema is made of."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1)]


class Strict(BaseModel):
    """Every key is known, every value has the declared type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
