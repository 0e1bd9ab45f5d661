//! HTTP ports that stay available: bounded connections, per server and per peer, and time limits.
//!
//! A port never stops accepting. When it has as many connections as it may have, the connection that has been idle
//! for longest makes room, of the peer that has the most; a connection with a request in flight is never closed for
//! another one. A connection that sends no request, or no further one, ends after a while.

mod connection;
mod limits;
mod listener;
mod server;
mod table;

pub use connection::{Peer, Transport};
pub use limits::Limits;
pub use listener::Listener;
pub use server::{Server, Shutdown};
