//! Why a revision is not loaded: the stage that failed and its error message.

pub(crate) use assent_core::session::Stage;

/// Longest error text that goes over the wire; the protocol's bound.
pub(crate) const MESSAGE_LIMIT: usize = 4096;

/// One failure of one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The step that failed.
    pub(crate) stage: Stage,
    /// For the policy's author.
    pub(crate) message: String,
    /// Whether a retry may help without a new revision.
    pub(crate) retryable: bool,
}

// === impl Failure ===

impl Failure {
    /// A failure that no retry can change: only new content can.
    pub(crate) fn permanent(stage: Stage, message: impl Into<String>) -> Self {
        Self {
            stage,
            message: cut(message.into()),
            retryable: false,
        }
    }

    /// A failure that a retry may resolve.
    pub(crate) fn transient(stage: Stage, message: impl Into<String>) -> Self {
        Self {
            retryable: true,
            ..Self::permanent(stage, message)
        }
    }
}

/// Truncates text to what the protocol allows, at a character boundary.
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
    fn long_text_is_truncated_at_a_character() {
        assert_eq!(cut("short".into()), "short");
        let text = cut("ä".repeat(MESSAGE_LIMIT));
        assert!(text.len() <= MESSAGE_LIMIT && text.len() > MESSAGE_LIMIT - 8);
        assert!(text.ends_with("ä…"));
        assert_eq!(cut("a".repeat(MESSAGE_LIMIT)).len(), MESSAGE_LIMIT);
    }
}
