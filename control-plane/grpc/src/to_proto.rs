//! Core types to the wire, besides those that evaluators write too (see `assent-wire`).

use std::time::{SystemTime, UNIX_EPOCH};

use assent_proto::v1;

use crate::hub::ControlPlane;

pub(crate) fn control_plane(control_plane: &ControlPlane) -> v1::ControlPlane {
    v1::ControlPlane {
        id: control_plane.id.clone(),
        version: control_plane.version.clone(),
        lease_transitions: control_plane.lease_transitions,
    }
}

/// Times before 1970 do not occur; they would be written as its first moment.
pub(crate) fn timestamp(at: SystemTime) -> prost_types::Timestamp {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    prost_types::Timestamp {
        seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(since.subsec_nanos()).unwrap_or(0),
    }
}
