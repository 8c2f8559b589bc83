"""Which rows of the ledger are a key's, a tenant's or an organisation's, as conditions in SQL.

What an organisation spent is what its tenants spent while they were its own; see `TENANT_MOVES`.
"""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from pagoda_gateway.accounts.keys import ApiKey
from pagoda_gateway.accounts.limit_scope import LimitScope
from pagoda_gateway.accounts.money.sealing import DAY_SECONDS
from pagoda_gateway.accounts.money.tables import USAGE_DAYS
from pagoda_gateway.accounts.tables import USAGE
from pagoda_gateway.accounts.tenancy.tables import API_KEYS, TENANT_MOVES, TENANTS


def moves_of(scope: LimitScope, month_start: int) -> sa.Select[Any]:
    """Return the moves of this month to and from an organisation."""
    return sa.select(TENANT_MOVES.c.tenant).where(
        TENANT_MOVES.c.day >= month_start,
        sa.or_(
            TENANT_MOVES.c.organisation == scope.name, TENANT_MOVES.c.tenant.in_(_members(scope))
        ),
    )


def row_is_of_scope(
    scope: LimitScope, key: ApiKey, month_start: int, *, has_moves: bool
) -> sa.ColumnElement[bool]:
    """Return the condition that a row of `USAGE` of this month is a scope's; see `Spending.of`."""
    usage = USAGE.c
    if not has_moves:
        return _of_scope_now(usage, scope, key)
    return sa.and_(
        usage.tenant.in_(_members_since(scope, month_start)),
        sa.or_(
            usage.tenant.not_in(_moved(month_start)),
            organisation_of_row() == scope.name,
        ),
    )


def day_is_of_scope(
    scope: LimitScope, key: ApiKey, month_start: int, *, has_moves: bool
) -> sa.ColumnElement[bool]:
    """Return the condition that a row of `USAGE_DAYS` is a scope's, in part at least."""
    days = USAGE_DAYS.c
    if not has_moves:
        return _of_scope_now(days, scope, key)
    return sa.and_(
        days.tenant.in_(_members_since(scope, month_start)),
        sa.or_(
            days.tenant.not_in(_moved(month_start)), was_member_on(scope, days.tenant, days.day)
        ),
    )


def _of_scope_now(
    columns: ReadOnlyColumnCollection[str, sa.Column[Any]], scope: LimitScope, key: ApiKey
) -> sa.ColumnElement[bool]:
    if scope.kind == "organisation":
        return columns.tenant.in_(_members(scope))
    if scope.kind == "tenant":
        return columns.tenant == scope.name
    # Its successors have its scope: see `ApiKeys.rotate`.
    successors = sa.select(API_KEYS.c.api_key_id).where(API_KEYS.c.first_key_id == scope.name)
    return sa.and_(
        columns.tenant == key.tenant,
        sa.or_(columns.api_key_id == scope.name, columns.api_key_id.in_(successors)),
    )


def _members(scope: LimitScope) -> sa.Select[Any]:
    return sa.select(TENANTS.c.tenant).where(TENANTS.c.organisation == scope.name)


def _members_since(scope: LimitScope, month_start: int) -> sa.CompoundSelect[Any]:
    """Return the tenants that are an organisation's, or were this month."""
    return sa.union(
        _members(scope),
        _moved(month_start).where(TENANT_MOVES.c.organisation == scope.name),
    )


def _moved(month_start: int) -> sa.Select[Any]:
    """Return the tenants that left an organisation this month: few, if any."""
    return sa.select(TENANT_MOVES.c.tenant).where(TENANT_MOVES.c.day >= month_start)


def was_member_on(
    scope: LimitScope, tenant: sa.ColumnElement[str], day: sa.ColumnElement[int]
) -> sa.ColumnElement[bool]:
    """Return the condition that a tenant was an organisation's at some time of a day."""
    has_left = sa.exists().where(
        TENANT_MOVES.c.tenant == tenant,
        TENANT_MOVES.c.day == day,
        TENANT_MOVES.c.organisation == scope.name,
    )
    end = (sa.cast(day, sa.Double) + 1) * DAY_SECONDS
    at_its_end = _organisation_until(tenant, TENANT_MOVES.c.moved_unix_seconds >= end)
    return sa.or_(has_left, at_its_end == scope.name)


def organisation_of_row() -> sa.ColumnElement[str]:
    """Return whose tenant it was that a row of `USAGE` was opened for."""
    has_opened = TENANT_MOVES.c.moved_unix_seconds > USAGE.c.opened_unix_seconds
    return _organisation_until(USAGE.c.tenant, has_opened)


def _organisation_until(
    tenant: sa.ColumnElement[str], is_later: sa.ColumnElement[bool]
) -> sa.ColumnElement[str]:
    """Return whose a tenant was before its moves that are `is_later`: the first of them left it."""
    left_next = (
        sa.select(TENANT_MOVES.c.organisation)
        .where(TENANT_MOVES.c.tenant == tenant, is_later)
        .order_by(TENANT_MOVES.c.moved_unix_seconds)
        .limit(1)
        .correlate_except(TENANT_MOVES)
        .scalar_subquery()
    )
    now = (
        sa.select(TENANTS.c.organisation)
        .where(TENANTS.c.tenant == tenant)
        .correlate_except(TENANTS)
        .scalar_subquery()
    )
    return sa.func.coalesce(left_next, now)
