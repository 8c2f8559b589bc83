"""Bodies of the administration that are about money."""

from typing import Annotated

from pydantic import Field

from pagoda_gateway.admin.bodies import AdminBody, ModelName, UnixSeconds

# A whole unit for each token; what 2^32 of them cost is exact in JavaScript's numbers too.
MAX_RATE_MICROS = 10**12
Rate = Annotated[int, Field(ge=0, le=MAX_RATE_MICROS, description="Micros for a million tokens.")]
CachedRate = Annotated[
    int | None,
    Field(ge=0, le=MAX_RATE_MICROS, description="At most input_micros; null: as much."),
]


class NewPrice(AdminBody):
    """POST /admin/prices. Micros are millionths of the unit that prices are in."""

    model: ModelName
    input_micros: Rate
    cached_device_micros: CachedRate = None
    cached_cpu_micros: CachedRate = None
    cached_nvme_micros: CachedRate = None
    output_micros: Rate
    batch_discount_percent: int = Field(0, ge=0, le=100)
    valid_from: UnixSeconds | None = Field(None, description="Unix seconds; null: now.")

    def rates(self) -> dict[str, int]:
        """Return all but what it is the price of, and when."""
        given = self.model_dump(exclude={"model", "valid_from"})
        return {
            name: self.input_micros if value is None else value for name, value in given.items()
        }
