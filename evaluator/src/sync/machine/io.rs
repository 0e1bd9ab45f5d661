//! What goes into the machine and what comes out.

use std::{collections::BTreeMap, sync::Arc};

use assent_core::{Digest, Policy, RevisionId, Version};

use super::REJECTIONS;
use crate::{
    announced::{Announced, Routes},
    failure::Failure,
    plan::{Failed, Layout, Loaded},
    sync::parts::Part,
};

/// What happened.
#[derive(Debug)]
pub(crate) enum Input {
    /// The set that was found on disk.
    Restored { set: Announced, whole: bool },
    /// A stream can be opened.
    Connected,
    /// A response, or one part of it, came in.
    Received(Part),
    /// A response came in that can't be read at all.
    Unreadable { nonce: String, why: String },
    /// What [`Output::Prepare`] asked for is done.
    Prepared { results: Results, timing: Timing },
    /// The time for a retry has come.
    RetryDue,
    /// A loaded revision fails its first reviews.
    RuntimeFailed { revision: RevisionId, why: String },
    /// It does not any more.
    RuntimeRecovered { revision: RevisionId },
    /// The stream is gone.
    Disconnected,
}

pub(crate) type Results = BTreeMap<RevisionId, Result<(), Failure>>;

/// What to do, in this order.
#[derive(Debug, PartialEq)]
pub(crate) enum Output {
    Open(Hello),
    Prepare(Vec<Arc<Policy>>),
    Swap(Box<Swap>),
    Answer(Answer),
    /// Try the passing failures again, after a delay that grows with the attempt.
    RetryLater {
        attempt: u32,
    },
    /// Something was refused as a whole: unless news settles it, ask for everything anew.
    ResyncLater,
    /// End the stream and open another one.
    Reconnect,
}

/// A set to put in place, and whether the control plane stands behind it.
#[derive(Debug, PartialEq)]
pub(crate) struct Swap {
    pub(crate) layout: Layout,
    pub(crate) loaded: Loaded,
    pub(crate) routes: Routes,
    pub(crate) whole: bool,
    pub(crate) confirmed: bool,
    /// The newest leadership term that was seen.
    pub(crate) lease_transitions: u64,
}

/// The first message of a stream.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Hello {
    pub(crate) version: Option<Version>,
    pub(crate) revisions: BTreeMap<RevisionId, Digest>,
}

/// The answer to a response.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Answer {
    pub(crate) nonce: String,
    pub(crate) version: Option<Version>,
    /// Present: a NACK.
    pub(crate) error: Option<String>,
    pub(crate) rejected: Vec<(RevisionId, Failure)>,
    pub(crate) truncated: bool,
    pub(crate) timing: Timing,
}

/// How long each step of applying took, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Timing {
    pub(crate) fetch_us: u64,
    pub(crate) compile_us: u64,
    pub(crate) self_test_us: u64,
    pub(crate) swap_us: u64,
}

// === impl Answer ===

impl Answer {
    /// The part of an answer that tells of failures.
    pub(crate) fn about(failed: &Failed) -> Self {
        let rejected = failed.iter().take(REJECTIONS);
        let error = failed.iter().next().map(|(revision, failure)| {
            let (count, why) = (failed.len(), &failure.message);
            crate::failure::cut(match count {
                1 => format!("failed to load {revision}: {why}"),
                _ => format!("failed to load {count} revisions, the first is {revision}: {why}"),
            })
        });
        Self {
            error,
            rejected: rejected
                .map(|(id, failure)| (id.clone(), failure.clone()))
                .collect(),
            truncated: failed.len() > REJECTIONS,
            ..Self::default()
        }
    }
}
