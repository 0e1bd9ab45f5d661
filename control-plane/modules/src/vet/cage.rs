//! The cage: what the child gives up for good before it reads the module.
//!
//! Whoever finds a way from a module into native code of this process gets a process
//! that can compute, read its input and write its report, and nothing else.

mod filter;

use std::{fs, io};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _,
    RulesetCreated, RulesetStatus, Scope,
};
use rustix::process::DumpableBehavior;
use serde::{Deserialize, Serialize};

/// The restrictions that are in force in a vetting child on this system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confinement {
    /// Landlock: no file can be opened, no TCP port used, no process outside signalled.
    pub landlock: Enforcement,
    /// A seccomp filter: only system calls that computing needs. No descriptor can be made
    /// and no process started.
    pub seccomp: bool,
    /// Nothing that is executed gains privileges.
    pub no_new_privileges: bool,
    /// The user is not root and has no capabilities.
    pub unprivileged: bool,
}

/// The part of a mechanism that the kernel has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Enforcement {
    /// All that this build asks for.
    Full,
    /// Files are covered; newer features of the mechanism are missing.
    Partial,
    /// The mechanism is missing or disabled.
    None,
}

/// Confines the calling process, which must have one thread, and returns what is in force.
///
/// It fails if the kernel has neither Landlock nor seccomp filters: the process could read
/// the files of the control plane then, such as its service account token.
pub fn confine() -> io::Result<Confinement> {
    // No other process of the same user may trace this one or read its memory.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let unprivileged = is_unprivileged();
    let (landlock, no_new_privileges) = restrict_files();
    let seccomp = match filter::install() {
        Ok(()) => true,
        Err(error) if landlock == Enforcement::None => {
            return Err(io::Error::other(format!(
                "this system has neither Landlock nor seccomp filters ({error}), so a module could \
                 read the files of the control plane; enable one of them"
            )));
        }
        Err(_) => false,
    };
    Ok(Confinement {
        landlock,
        seccomp,
        // Installing a filter includes it.
        no_new_privileges: no_new_privileges || seccomp,
        unprivileged,
    })
}

/// Not root and without capabilities. The parent starts its children as another user if it
/// is root.
fn is_unprivileged() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut permitted = status
        .lines()
        .filter_map(|line| line.strip_prefix("CapPrm:"));
    let has_none = permitted
        .next()
        .is_some_and(|set| set.trim().bytes().all(|digit| digit == b'0'));
    has_none && !rustix::process::geteuid().is_root()
}

/// Denies every access that Landlock knows. There are no exceptions: all that the child
/// needs comes through its pipes.
///
/// Returns with it whether the process can gain no privileges.
fn restrict_files() -> (Enforcement, bool) {
    let abi = ABI::V6;
    let restricted = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(abi))
        .and_then(|rules| rules.handle_access(AccessNet::from_all(abi)))
        .and_then(|rules| rules.scope(Scope::from_all(abi)))
        .and_then(Ruleset::create)
        .and_then(RulesetCreated::restrict_self);
    let Ok(status) = restricted else {
        return (Enforcement::None, false);
    };
    let enforcement = match status.ruleset {
        RulesetStatus::FullyEnforced => Enforcement::Full,
        RulesetStatus::PartiallyEnforced => Enforcement::Partial,
        RulesetStatus::NotEnforced => Enforcement::None,
    };
    (enforcement, status.no_new_privs)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::{fs::File, net::TcpListener};

    use super::*;

    #[test]
    fn landlock_denies_what_its_enforcement_claims() {
        // Landlock restricts the thread that asks for it.
        let confined = std::thread::spawn(|| {
            let open = || File::open("/proc/self/exe").map(drop);
            let listen = || TcpListener::bind("127.0.0.1:0").map(drop);
            open().unwrap();
            listen().unwrap();
            (restrict_files().0, open(), listen())
        });
        let (enforcement, open, listen) = confined.join().unwrap();
        match enforcement {
            Enforcement::Full => assert!(open.is_err() && listen.is_err()),
            Enforcement::Partial => assert!(open.is_err()),
            Enforcement::None => assert!(open.is_ok() && listen.is_ok()),
        }
        File::open("/proc/self/exe").unwrap();
    }
}
