//! Places where a test ends the process, to see that the next one goes on from there.

/// Ends the process as `kill -9` would, where `ASSENT_FAILPOINT` names this place. Only builds
/// for development look.
pub(super) fn failpoint(place: &str) {
    if cfg!(debug_assertions)
        && let Some(wanted) = std::env::var_os("ASSENT_FAILPOINT")
        && wanted == place
    {
        tracing::error!(place, "ending here, as ASSENT_FAILPOINT asks");
        std::process::abort();
    }
}
