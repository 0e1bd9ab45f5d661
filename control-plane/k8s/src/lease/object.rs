//! Conversion between the `Lease` object and the election's records.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};

use super::{
    Error,
    machine::{Draft, Record},
};
use crate::names;

/// The record in the object.
pub(super) fn record(lease: &Lease) -> Result<Record, Error> {
    let spec = lease.spec.clone().unwrap_or_default();
    let version = lease.metadata.resource_version.clone();
    let number = |of: Option<i32>| of.and_then(|of| u64::try_from(of).ok()).unwrap_or(0);
    Ok(Record {
        version: version.ok_or(Error::Versionless)?,
        holder: spec.holder_identity.filter(|holder| !holder.is_empty()),
        address: lease
            .metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get(names::LEADER_ADDRESS_ANNOTATION))
            .cloned()
            .unwrap_or_default(),
        transitions: number(spec.lease_transitions),
        lease: Duration::from_secs(number(spec.lease_duration_seconds)),
    })
}

/// The object to write. It starts from `last` if the draft follows from that version, so that
/// fields of others are kept.
pub(super) fn lease(last: Option<&Lease>, draft: &Draft, now: Timestamp) -> Lease {
    let same =
        |last: &&Lease| draft.version.is_some() && last.metadata.resource_version == draft.version;
    let mut lease = last.filter(same).cloned().unwrap_or_default();
    lease.metadata.name = Some(names::LEASE.to_owned());
    lease.metadata.resource_version = draft.version.clone();
    // The API server computes the managed fields; an update must not send them back.
    lease.metadata.managed_fields = None;
    let labels = lease.metadata.labels.get_or_insert_default();
    labels.insert(
        names::MANAGED_BY.0.to_owned(),
        names::MANAGED_BY.1.to_owned(),
    );
    let annotations = lease.metadata.annotations.get_or_insert_default();
    match &draft.holder {
        Some(_) => annotations.insert(
            names::LEADER_ADDRESS_ANNOTATION.to_owned(),
            draft.address.clone(),
        ),
        None => annotations.remove(names::LEADER_ADDRESS_ANNOTATION),
    };
    let spec: &mut LeaseSpec = lease.spec.get_or_insert_default();
    spec.holder_identity = draft.holder.clone();
    spec.lease_transitions = Some(i32::try_from(draft.transitions).unwrap_or(i32::MAX));
    spec.lease_duration_seconds = Some(seconds(draft.lease));
    spec.renew_time = Some(MicroTime(now));
    if draft.acquires {
        spec.acquire_time = Some(MicroTime(now));
    }
    lease
}

/// Whole seconds, rounded up; the API server requires at least one.
fn seconds(of: Duration) -> i32 {
    let whole = of.as_secs() + u64::from(of.subsec_nanos() > 0);
    i32::try_from(whole).unwrap_or(i32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn mk_draft(version: Option<&str>, holder: Option<&str>) -> Draft {
        Draft {
            version: version.map(str::to_owned),
            holder: holder.map(str::to_owned),
            address: "10.0.0.7:15010".to_owned(),
            transitions: 7,
            lease: Duration::from_millis(1_500),
            acquires: true,
        }
    }

    #[test]
    fn written_record_is_read_back() {
        let mut lease = lease(None, &mk_draft(None, Some("a")), Timestamp::UNIX_EPOCH);
        assert!(matches!(record(&lease), Err(Error::Versionless)));
        lease.metadata.resource_version = Some("1".to_owned());
        let record = record(&lease).unwrap();
        let expect = Record {
            version: "1".to_owned(),
            holder: Some("a".to_owned()),
            address: "10.0.0.7:15010".to_owned(),
            transitions: 7,
            lease: Duration::from_secs(2),
        };
        assert_eq!(record, expect);
    }

    #[test]
    fn update_keeps_foreign_fields_and_release_clears_the_holder() {
        let mut first = lease(None, &mk_draft(None, Some("a")), Timestamp::UNIX_EPOCH);
        first.metadata.resource_version = Some("1".to_owned());
        let annotations = first.metadata.annotations.as_mut().unwrap();
        annotations.insert("theirs".to_owned(), "x".to_owned());
        let mut draft = mk_draft(Some("1"), None);
        draft.acquires = false;
        let next = lease(Some(&first), &draft, Timestamp::now());
        let annotations = next.metadata.annotations.as_ref().unwrap();
        assert!(annotations.contains_key("theirs"));
        assert!(!annotations.contains_key(names::LEADER_ADDRESS_ANNOTATION));
        let spec = next.spec.as_ref().unwrap();
        assert_eq!(spec.holder_identity, None);
        assert_eq!(spec.acquire_time, first.spec.as_ref().unwrap().acquire_time);
        assert_ne!(spec.renew_time, first.spec.as_ref().unwrap().renew_time);
        // Nothing of another version is kept: it would be written with a wrong version.
        let other = lease(Some(&first), &mk_draft(Some("2"), None), Timestamp::now());
        assert!(!other.metadata.annotations.unwrap().contains_key("theirs"));
    }
}
