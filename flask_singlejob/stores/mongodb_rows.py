"""A claimable name's document in MongoDB: how it begins, what a claim asks of it and changes in it.

Pure: rows out of documents, and expressions for the server. Knows no connection.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..records import ClaimKey, ClaimRequest, ClaimRow
from .mongodb_link import NOW, literal

__all__ = ["changes_of", "conditions_of", "freed", "place_of", "row_of", "rows_of", "start_of"]


def place_of(key: ClaimKey) -> str:
    """Return the path of a slot's place in the document; ``s0`` is the name's own."""
    return f"places.s{key.slot}"


def rows_of(claim: Mapping[str, Any]) -> list[ClaimRow]:
    """Return the rows of one document: its own and one for each slot."""
    return [row_of(claim, slot) for slot in sorted(int(place[1:]) for place in claim["places"])]


def row_of(claim: Mapping[str, Any], slot: int) -> ClaimRow:
    """Return the row of one slot."""
    place = claim["places"][f"s{slot}"]
    values: dict[str, Any] = {"resolved": place.get("made", 0), "token": place["token"]}
    if slot == 0:
        values.update({name: claim[name] for name in ("resolved", "token", "hold_until")})
        values.update({name: claim.get(name) for name in ("rerun_tick", "streak", "last_success")})
        values["rerun_attempt"] = claim.get("rerun_attempt") or 0
        values["last_run"] = json.loads(claim["last_run"]) if claim.get("last_run") else None
    values.update({name: place.get(name) for name in ("holder", "held_tick", "since", "expires")})
    values["info"] = json.loads(place["info"]) if place.get("info") else {}
    values["progress"] = json.loads(place["progress"]) if place.get("progress") else None
    return ClaimRow(ClaimKey(claim["kind"], claim["name"], claim["host"], slot), **values)


def start_of(key: ClaimKey, cluster: str) -> dict[str, Any]:
    """Return the changes that make a row, and change nothing where it is there."""
    resolved: Any = NOW if key.kind == "job" else {"$toLong": 0}
    place = place_of(key)
    return {
        "cluster": literal(cluster),
        "kind": literal(key.kind),
        "name": literal(key.name),
        "host": literal(key.host),
        "resolved": {"$ifNull": ["$resolved", resolved]},
        "held": {"$ifNull": ["$held", 0]},
        "token": {"$ifNull": ["$token", {"$toLong": 0}]},
        "hold_until": {"$ifNull": ["$hold_until", {"$toLong": 0}]},
        f"{place}.made": {"$ifNull": [f"${place}.made", resolved]},
        f"{place}.token": {"$ifNull": [f"${place}.token", {"$toLong": 0}]},
    }


def conditions_of(request: ClaimRequest, place: ClaimKey) -> list[dict[str, Any]]:
    """Return what has to hold, at the write, for a claim to be won."""
    conditions: list[dict[str, Any]] = [
        {"places.s0.holder": None},
        {f"{place_of(place)}.holder": None},
        {f"{place_of(place)}.token": {"$exists": True}},
        {"$expr": {"$lte": ["$hold_until", NOW]}},
    ]
    if request.seen_resolved is not None:
        conditions.append({"resolved": request.seen_resolved})
    if request.tick is not None and request.rerun:
        conditions.append({"rerun_tick": request.tick})
    elif request.tick is not None:
        conditions.append({"resolved": {"$lt": request.tick}})
        conditions.append({"rerun_tick": None})
        conditions.append({"$expr": {"$lte": [request.tick, NOW]}})
    return conditions


def changes_of(request: ClaimRequest, place: ClaimKey) -> dict[str, Any]:
    """Return what a claim that is won changes."""
    token = {"$max": [{"$add": ["$token", 1]}, NOW]}
    path = place_of(place)
    changes: dict[str, Any] = {
        "token": token,
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
        changes["hold_until"] = {"$add": [NOW, request.hold_ms]}
    if request.tick is not None:
        changes["streak"] = None
        if request.rerun:
            changes["rerun_tick"] = None
        else:
            changes.update(resolved={"$toLong": request.tick}, rerun_attempt=0)
    return changes


def freed(place: ClaimKey) -> dict[str, Any]:
    """Return the changes that end a claim."""
    path = place_of(place)
    empty = {f"{path}.{name}": None for name in ("holder", "held_tick", "since", "expires", "progress")}
    return {**empty, "held": {"$subtract": ["$held", 1]}}
