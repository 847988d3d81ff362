"""A claimable name's document in MongoDB: how it begins, what a claim asks of it and changes in it.

Pure: rows out of documents, and expressions for the server. Knows no connection.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..records import ClaimKey, ClaimRequest, ClaimRow
from .mongodb_link import NOW, literal

__all__ = ["changes_of", "conditions_of", "fields_of", "freed", "place_of", "row_of", "rows_of", "start_of"]


def place_of(key: ClaimKey) -> str:
    """Return the path of a slot's place in the document; ``s0`` is the name's own."""
    return f"places.s{key.slot}"


def fields_of(key: ClaimKey) -> str:
    """Return what stands before a field of this row's own, such as ``resolved``: nothing for slot 0."""
    return f"{place_of(key)}." if key.slot else ""


def rows_of(claim: Mapping[str, Any]) -> list[ClaimRow]:
    """Return the rows of one document: its own and one for each slot."""
    return [row_of(claim, slot) for slot in sorted(int(place[1:]) for place in claim["places"])]


def row_of(claim: Mapping[str, Any], slot: int) -> ClaimRow:
    """Return the row of one slot."""
    place = claim["places"][f"s{slot}"]
    own = claim if slot == 0 else place
    values: dict[str, Any] = {name: own[name] for name in ("resolved", "token", "hold_until")}
    values.update({name: own.get(name) for name in ("rerun_tick", "streak", "last_success")})
    values["rerun_attempt"] = own.get("rerun_attempt") or 0
    values["last_run"] = json.loads(own["last_run"]) if own.get("last_run") else None
    values.update({name: place.get(name) for name in ("holder", "held_tick", "since", "expires")})
    values["info"] = json.loads(place["info"]) if place.get("info") else {}
    values["progress"] = json.loads(place["progress"]) if place.get("progress") else None
    return ClaimRow(ClaimKey(claim["kind"], claim["name"], claim["host"], slot), **values)


def start_of(key: ClaimKey, cluster: str) -> dict[str, Any]:
    """Return the changes that make a row, and change nothing where it is there."""
    own, place = fields_of(key), place_of(key)
    counts = {
        f"{own}resolved": NOW if key.kind == "job" else 0,
        f"{own}token": 0,
        f"{own}hold_until": 0,
        "held": 0,
        f"{place}.token": 0,
    }
    missing = {path: {"$ifNull": [f"${path}", {"$toLong": start}]} for path, start in counts.items()}
    names = {"cluster": cluster, "kind": key.kind, "name": key.name, "host": key.host}
    return {**missing, **{name: literal(value) for name, value in names.items()}}


def conditions_of(key: ClaimKey, place: ClaimKey, request: ClaimRequest) -> list[dict[str, Any]]:
    """Return what has to hold, at the write, for a claim to be won."""
    own = fields_of(key)
    conditions: list[dict[str, Any]] = [
        {f"{place_of(key)}.holder": None},
        {f"{place_of(place)}.holder": None},
        {f"{place_of(place)}.token": {"$exists": True}},
        {"$expr": {"$lte": [f"${own}hold_until", NOW]}},
    ]
    if request.seen_resolved is not None:
        conditions.append({f"{own}resolved": request.seen_resolved})
    if request.tick is not None and request.rerun:
        conditions.append({f"{own}rerun_tick": request.tick})
    elif request.tick is not None:
        conditions.append({f"{own}resolved": {"$lt": request.tick}})
        conditions.append({f"{own}rerun_tick": None})
        conditions.append({"$expr": {"$lte": [request.tick, NOW]}})
    return conditions


def changes_of(key: ClaimKey, place: ClaimKey, request: ClaimRequest) -> dict[str, Any]:
    """Return what a claim that is won changes."""
    own, path = fields_of(key), place_of(place)
    token = {"$max": [{"$add": [f"${own}token", 1]}, NOW]}
    changes: dict[str, Any] = {
        f"{own}token": token,
        "held": {"$add": ["$held", 1]},
        f"{path}.token": token,
        f"{path}.holder": literal(request.holder),
        f"{path}.held_tick": NOW if request.tick is None else {"$toLong": request.tick},
        f"{path}.since": NOW,
        f"{path}.expires": {"$add": [NOW, request.lease_ms]},
        f"{path}.info": literal(json.dumps(dict(request.info))),
        f"{path}.attempt": int(request.info.get("attempt", 1)),
        f"{path}.progress": None,
    }
    if request.hold_ms:
        changes[f"{own}hold_until"] = {"$add": [NOW, request.hold_ms]}
    if request.tick is not None:
        changes[f"{own}streak"] = None
        if request.rerun:
            changes[f"{own}rerun_tick"] = None
        else:
            changes[f"{own}resolved"] = {"$toLong": request.tick}
            changes[f"{own}rerun_attempt"] = 0
    return changes


def freed(place: ClaimKey) -> dict[str, Any]:
    """Return the changes that end a claim."""
    path = place_of(place)
    empty = {f"{path}.{name}": None for name in ("holder", "held_tick", "since", "expires", "progress")}
    return {**empty, "held": {"$subtract": ["$held", 1]}}
