//! Why a revision is not loaded: the stage that refused it and its words.

/// Longest error text that goes over the wire; the protocol's bound.
pub(crate) const MESSAGE_LIMIT: usize = 4096;

/// One refusal of one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Where preparing it failed.
    pub(crate) stage: Stage,
    /// In words for the policy's author.
    pub(crate) message: String,
    /// Whether trying again may help without a new revision.
    pub(crate) retryable: bool,
}

/// The steps from an offer to a decision, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Stage {
    /// The module could not be had.
    Fetch,
    /// What was offered does not match its digest, or is not understood.
    Verify,
    /// The module did not compile.
    Compile,
    /// The module asks for what its ABI does not give.
    Link,
    /// An instance could not be made.
    Instantiate,
    /// The module refused its settings.
    Settings,
    /// The first, empty review failed.
    SelfTest,
    /// The set could not be put in place.
    Swap,
    /// The first real reviews failed.
    Runtime,
}

// === impl Failure ===

impl Failure {
    /// A refusal that stands until the content changes.
    pub(crate) fn lasting(stage: Stage, message: impl Into<String>) -> Self {
        Self {
            stage,
            message: cut(message.into()),
            retryable: false,
        }
    }

    /// A refusal that may pass by itself.
    pub(crate) fn passing(stage: Stage, message: impl Into<String>) -> Self {
        Self {
            retryable: true,
            ..Self::lasting(stage, message)
        }
    }
}

// === impl Stage ===

impl Stage {
    /// The name in logs, metrics and markers.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Stage::Fetch => "fetch",
            Stage::Verify => "verify",
            Stage::Compile => "compile",
            Stage::Link => "link",
            Stage::Instantiate => "instantiate",
            Stage::Settings => "settings",
            Stage::SelfTest => "selftest",
            Stage::Swap => "swap",
            Stage::Runtime => "runtime",
        }
    }
}

/// Shortens text to what the wire takes, at a character's border.
pub(crate) fn cut(mut text: String) -> String {
    if text.len() > MESSAGE_LIMIT {
        let mut end = MESSAGE_LIMIT - '…'.len_utf8();
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_cut_at_a_character() {
        assert_eq!(cut("short".into()), "short");
        let text = cut("ä".repeat(MESSAGE_LIMIT));
        assert!(text.len() <= MESSAGE_LIMIT && text.len() > MESSAGE_LIMIT - 8);
        assert!(text.ends_with("ä…"));
        assert_eq!(cut("a".repeat(MESSAGE_LIMIT)).len(), MESSAGE_LIMIT);
    }
}
