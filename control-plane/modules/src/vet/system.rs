//! What a vetting child reports about the system, without a module.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::cage::{Confinement, Enforcement};

/// A vetting child on this system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct System {
    /// The restrictions that are in force in it.
    pub confinement: Confinement,
    /// The fingerprint of its engine, which compiles artefacts.
    pub engine: String,
}

// === impl Confinement ===

impl Confinement {
    /// Each mechanism and whether it is in force. The names are label values of a metric.
    pub fn mechanisms(&self) -> [(&'static str, bool); 4] {
        [
            ("landlock", self.landlock != Enforcement::None),
            ("seccomp", self.seccomp),
            ("no_new_privileges", self.no_new_privileges),
            ("unprivileged", self.unprivileged),
        ]
    }
}

impl fmt::Display for Confinement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |in_force| if in_force { "yes" } else { "no" };
        let landlock = match self.landlock {
            Enforcement::Full => "yes",
            Enforcement::Partial => "partial",
            Enforcement::None => "no",
        };
        write!(
            f,
            "landlock={landlock} seccomp={} no_new_privileges={} unprivileged={}",
            word(self.seccomp),
            word(self.no_new_privileges),
            word(self.unprivileged)
        )
    }
}
