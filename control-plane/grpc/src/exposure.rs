//! Which addresses may be listened on with which protection.

use std::net::SocketAddr;

/// Why an address is not listened on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No TLS.
    #[error("refusing to listen on {0} without TLS: give a certificate, or use a loopback address")]
    NoTls(SocketAddr),
    /// No tokens.
    #[error(
        "refusing to listen on {0} without tokens: give a token file, or use a loopback address"
    )]
    NoTokens(SocketAddr),
}

/// Off loopback there must be both TLS and tokens: otherwise anyone in reach reads all
/// policies, or pretends to be a replica.
pub fn check_exposure(address: SocketAddr, tls: bool, tokens: bool) -> Result<(), Error> {
    if address.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    if !tls {
        return Err(Error::NoTls(address));
    }
    if !tokens {
        return Err(Error::NoTokens(address));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_loopback_goes_without_protection() {
        for own in [
            "127.0.0.1:1",
            "127.9.9.9:1",
            "[::1]:1",
            "[::ffff:127.0.0.1]:1",
        ] {
            assert_eq!(
                check_exposure(own.parse().unwrap(), false, false),
                Ok(()),
                "{own}"
            );
        }
        for other in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "[::ffff:10.0.0.1]:1"] {
            let address = other.parse().unwrap();
            assert_eq!(check_exposure(address, true, true), Ok(()));
            assert_eq!(
                check_exposure(address, false, true),
                Err(Error::NoTls(address))
            );
            assert_eq!(
                check_exposure(address, true, false),
                Err(Error::NoTokens(address))
            );
        }
    }
}
