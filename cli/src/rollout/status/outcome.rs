//! The outcome of a rollout.

use assent_proto::v1::{Condition, PolicyStatus};

use crate::out::clean;

/// The state of a rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The webhook points at the generation, and every required replica serves it.
    Enforced,
    /// The generation was refused before it was distributed.
    Refused(String),
    /// Not applied everywhere in time; the previous generation stays enforced.
    Stalled(String),
    /// In progress.
    Waiting(String),
    /// In progress when the timeout expired.
    Late(String),
    /// There is no such policy.
    Absent,
}

/// Computes the outcome; `generation` is the one to wait for.
pub(super) fn outcome_of(status: &PolicyStatus, generation: Option<i64>) -> Outcome {
    let find = |kind: &str| status.conditions.iter().find(|c| c.r#type == kind);
    let text = |c: &Condition| format!("{}: {}", c.reason, clean(&c.message));
    let observed = status
        .conditions
        .iter()
        .map(|c| c.observed_generation)
        .max();
    if let Some(wanted) = generation.filter(|wanted| observed.is_none_or(|seen| seen < *wanted)) {
        return Outcome::waiting(&format!("generation {wanted} is not observed yet"));
    }
    if let Some(accepted) = find("Accepted").filter(|c| c.status == "False") {
        return Outcome::Refused(text(accepted));
    }
    match (find("Programmed"), find("Enforced")) {
        (_, Some(enforced)) if enforced.status == "True" => Outcome::Enforced,
        (Some(programmed), _) if programmed.reason == "Stalled" => {
            Outcome::Stalled(text(programmed))
        }
        (Some(programmed), _) if programmed.status != "True" => Outcome::Waiting(text(programmed)),
        (_, Some(enforced)) => Outcome::Waiting(text(enforced)),
        (_, None) => Outcome::waiting("the state is not known yet"),
    }
}

// === impl Outcome ===

impl Outcome {
    pub(super) fn waiting(why: &str) -> Self {
        Self::Waiting(why.to_owned())
    }

    /// The outcome as a sentence.
    pub(super) fn sentence(&self, policy: &str) -> String {
        match self {
            Self::Enforced => format!("{policy} is enforced"),
            Self::Refused(why) => format!("{policy} was refused: {why}"),
            Self::Stalled(why) => format!("{policy} is stalled: {why}"),
            Self::Waiting(why) => format!("{policy} is not enforced: {why}"),
            Self::Late(why) => format!("{policy} was not enforced in time: {why}"),
            Self::Absent => format!("{policy} does not exist"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(conditions: &[(&str, &str, &str)], generation: Option<i64>, expect: &Outcome) {
        let condition = |(kind, status, reason): &(&str, &str, &str)| Condition {
            r#type: (*kind).into(),
            status: (*status).into(),
            reason: (*reason).into(),
            message: "why".into(),
            observed_generation: 2,
            ..Condition::default()
        };
        let status = PolicyStatus {
            conditions: conditions.iter().map(condition).collect(),
            ..PolicyStatus::default()
        };
        assert_eq!(&outcome_of(&status, generation), expect);
    }

    const ENFORCED: &[(&str, &str, &str)] = &[
        ("Accepted", "True", "Accepted"),
        ("Programmed", "True", "Programmed"),
        ("Enforced", "True", "Enforced"),
    ];

    #[test]
    fn enforced_generation_ends_the_wait() {
        check(ENFORCED, None, &Outcome::Enforced);
        check(ENFORCED, Some(2), &Outcome::Enforced);
    }

    #[test]
    fn older_generation_does_not_count() {
        check(
            ENFORCED,
            Some(3),
            &Outcome::waiting("generation 3 is not observed yet"),
        );
    }

    #[test]
    fn refusals_and_stalls_end_the_wait() {
        check(
            &[
                ("Accepted", "False", "Invalid"),
                ("Enforced", "False", "NotProgrammed"),
            ],
            None,
            &Outcome::Refused("Invalid: why".into()),
        );
        check(
            &[
                ("Accepted", "True", "Accepted"),
                ("Programmed", "False", "Stalled"),
                ("Enforced", "False", "NotProgrammed"),
            ],
            None,
            &Outcome::Stalled("Stalled: why".into()),
        );
    }

    #[test]
    fn other_states_keep_waiting() {
        check(&[], None, &Outcome::waiting("the state is not known yet"));
        check(
            &[
                ("Accepted", "Unknown", "Pending"),
                ("Programmed", "Unknown", "Pending"),
                ("Enforced", "Unknown", "Pending"),
            ],
            None,
            &Outcome::waiting("Pending: why"),
        );
        check(
            &[
                ("Accepted", "True", "Accepted"),
                ("Programmed", "False", "Rejected"),
                ("Enforced", "False", "NotProgrammed"),
            ],
            None,
            &Outcome::waiting("Rejected: why"),
        );
        check(
            &[
                ("Accepted", "True", "Accepted"),
                ("Programmed", "True", "Programmed"),
                ("Enforced", "False", "WebhookPending"),
            ],
            None,
            &Outcome::waiting("WebhookPending: why"),
        );
    }
}
