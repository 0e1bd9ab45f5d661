//! Places where a test ends the process, to see that the next one continues from there.

/// Ends the process like `kill -9` if `ASSENT_FAILPOINT` names this place. Release builds do
/// not look.
pub(crate) fn failpoint(place: &str) {
    if cfg!(debug_assertions)
        && let Some(wanted) = std::env::var_os("ASSENT_FAILPOINT")
        && wanted == place
    {
        tracing::error!(place, "ending the process as ASSENT_FAILPOINT asks");
        std::process::abort();
    }
}
