//! Which addresses modules may be fetched from.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The addresses that need no declaration, besides public ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// This machine.
    pub loopback: bool,
    /// Private networks: where Services and pods are.
    pub private: bool,
}

// === impl Reach ===

impl Reach {
    /// Public addresses only: for policies written by tenants of a cluster.
    pub const PUBLIC: Self = Self {
        loopback: false,
        private: false,
    };

    /// Also this machine and its networks: for standalone use, where the author of a
    /// policy could as well reach them by hand. Link-local addresses, where clouds
    /// hand out credentials, stay out.
    pub const LOCAL: Self = Self {
        loopback: true,
        private: true,
    };

    /// What kind of address it is, where it may not be used undeclared.
    pub(super) fn refusal(self, address: IpAddr) -> Option<&'static str> {
        let kind = kind(unwrapped(address))?;
        match kind {
            LOOPBACK if self.loopback => None,
            PRIVATE if self.private => None,
            _ => Some(kind),
        }
    }
}

const LOOPBACK: &str = "a loopback";
const PRIVATE: &str = "a private";
const LINK_LOCAL: &str = "a link-local";
const SPECIAL: &str = "a special-purpose";

fn kind(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => kind_v4(address),
        IpAddr::V6(address) => kind_v6(address),
    }
}

fn kind_v4(address: Ipv4Addr) -> Option<&'static str> {
    let [a, b, c, _] = address.octets();
    Some(match (a, b) {
        (127, _) => LOOPBACK,
        (169, 254) => LINK_LOCAL,
        (10, _) | (172, 16..=31) | (192, 168) => PRIVATE,
        // Shared by carriers, and by clouds for pods and Services.
        (100, 64..=127) => PRIVATE,
        // "This network" reaches the machine itself on Linux.
        (0, _) => LOOPBACK,
        // Protocol assignments, benchmarks, multicast, reserved, broadcast.
        (192, 0) if c == 0 => SPECIAL,
        (198, 18..=19) | (224..=255, _) => SPECIAL,
        _ => return None,
    })
}

fn kind_v6(address: Ipv6Addr) -> Option<&'static str> {
    let first = address.segments()[0];
    if address.is_loopback() || address.is_unspecified() {
        return Some(LOOPBACK);
    }
    match first {
        0xfe80..=0xfebf => Some(LINK_LOCAL),
        // Unique local, and site-local of old.
        0xfc00..=0xfdff | 0xfec0..=0xfeff => Some(PRIVATE),
        // Only 2000::/3 is given out to the public.
        0x2000..=0x3fff => None,
        _ => Some(SPECIAL),
    }
}

/// The address that packets end up at, where an IPv6 address carries an IPv4 one:
/// mapped, translated (64:ff9b::/96), 6to4 (2002::/16).
fn unwrapped(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else {
        return address;
    };
    let inner = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        IpAddr::V4(Ipv4Addr::new(a, b, c, d))
    };
    match v6.segments() {
        [0, 0, 0, 0, 0, 0xffff, high, low] => inner(high, low),
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => inner(high, low),
        [0x2002, high, low, ..] => inner(high, low),
        _ => address,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[track_caller]
    fn check(reach: Reach, address: &str, expect: Option<&str>) {
        assert_eq!(reach.refusal(address.parse().unwrap()), expect, "{address}");
    }

    #[test]
    fn public_addresses_are_reached() {
        for address in ["1.1.1.1", "172.32.0.1", "100.128.0.1", "192.0.66.1"] {
            check(Reach::PUBLIC, address, None);
        }
        for address in ["2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"] {
            check(Reach::PUBLIC, address, None);
        }
    }

    #[test]
    fn all_others_are_not() {
        for address in ["127.0.0.1", "127.9.9.9", "0.0.0.0", "::1", "::"] {
            check(Reach::PUBLIC, address, Some(LOOPBACK));
        }
        for address in ["10.96.0.1", "172.16.0.1", "172.31.9.9", "192.168.1.1"] {
            check(Reach::PUBLIC, address, Some(PRIVATE));
        }
        for address in ["100.64.0.1", "fd00::1", "fc00::1", "fec0::1"] {
            check(Reach::PUBLIC, address, Some(PRIVATE));
        }
        for address in ["169.254.169.254", "fe80::1", "febf::1"] {
            check(Reach::PUBLIC, address, Some(LINK_LOCAL));
        }
        for address in ["224.0.0.1", "255.255.255.255", "198.18.0.1", "ff02::1"] {
            check(Reach::PUBLIC, address, Some(SPECIAL));
        }
    }

    #[test]
    fn an_address_inside_another_counts() {
        check(Reach::PUBLIC, "::ffff:127.0.0.1", Some(LOOPBACK));
        check(Reach::PUBLIC, "64:ff9b::a9fe:a9fe", Some(LINK_LOCAL));
        check(Reach::PUBLIC, "2002:a00:1::1", Some(PRIVATE));
        check(Reach::PUBLIC, "::127.0.0.1", Some(SPECIAL));
    }

    #[test]
    fn standalone_reaches_its_surroundings_but_no_credentials() {
        check(Reach::LOCAL, "127.0.0.1", None);
        check(Reach::LOCAL, "192.168.1.1", None);
        check(Reach::LOCAL, "169.254.169.254", Some(LINK_LOCAL));
        check(Reach::LOCAL, "::ffff:169.254.169.254", Some(LINK_LOCAL));
    }
}
