//! Objects that were deleted a short time ago.

use std::collections::{HashSet, VecDeque};

use super::Meta;

/// How many deleted objects are remembered. The response to a write is late by seconds, and far
/// fewer objects are deleted in that time.
const MAX_DELETED: usize = 4_096;

/// Uids of objects that were deleted recently, in the order of their deletion.
#[derive(Debug, Default)]
pub(super) struct Deleted {
    uids: HashSet<String>,
    order: VecDeque<String>,
}

// === impl Deleted ===

impl Deleted {
    /// Whether an object was deleted. If objects have no versions, one may be created again with the same uid.
    pub(super) fn contains(&self, meta: &Meta) -> bool {
        meta.resource_version.parse::<u64>().is_ok() && self.uids.contains(&meta.uid)
    }

    pub(super) fn remember(&mut self, uid: &str) {
        if uid.is_empty() || !self.uids.insert(uid.to_owned()) {
            return;
        }
        self.order.push_back(uid.to_owned());
        if self.order.len() > MAX_DELETED
            && let Some(oldest) = self.order.pop_front()
        {
            self.uids.remove(&oldest);
        }
    }

    pub(super) fn forget(&mut self, uid: &str) {
        if self.uids.remove(uid) {
            self.order.retain(|other| other != uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_deleted_objects_is_bounded() {
        let mut deleted = Deleted::default();
        for number in 0..2 * MAX_DELETED {
            deleted.remember(&number.to_string());
        }
        assert_eq!(deleted.uids.len(), MAX_DELETED);
        assert_eq!(deleted.order.len(), MAX_DELETED);
        let meta = |uid: &str| Meta {
            uid: uid.into(),
            resource_version: "1".into(),
            ..Meta::default()
        };
        assert!(!deleted.contains(&meta("0")));
        assert!(deleted.contains(&meta(&MAX_DELETED.to_string())));
    }
}
