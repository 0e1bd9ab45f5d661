//! Which addresses may be connected to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Addresses that may be connected to without a declaration, besides public ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AddressPolicy {
    /// Loopback: this machine.
    pub loopback: bool,
    /// Private networks, where Services and pods are.
    pub private: bool,
}

// === impl AddressPolicy ===

impl AddressPolicy {
    /// Public addresses only: for policies written by tenants of a cluster.
    pub const PUBLIC: Self = Self {
        loopback: false,
        private: false,
    };

    /// Also this machine and its networks: for standalone use, where the author of a
    /// policy has access to them anyway. Link-local addresses stay refused, because clouds
    /// serve credentials there.
    pub const LOCAL: Self = Self {
        loopback: true,
        private: true,
    };

    /// The kind of the address, if it may be used only when it is declared.
    pub(crate) fn refusal(self, address: IpAddr) -> Option<&'static str> {
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
        // "This network": Linux connects to the machine itself.
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
        // Only 2000::/3 is allocated to the public.
        0x2000..=0x3fff => None,
        _ => Some(SPECIAL),
    }
}

/// The destination of packets to an IPv6 address that embeds an IPv4 address: mapped,
/// translated (64:ff9b::/96), 6to4 (2002::/16).
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
    fn check(policy: AddressPolicy, address: &str, expect: Option<&str>) {
        assert_eq!(
            policy.refusal(address.parse().unwrap()),
            expect,
            "{address}"
        );
    }

    #[test]
    fn public_addresses_are_allowed() {
        for address in ["1.1.1.1", "172.32.0.1", "100.128.0.1", "192.0.66.1"] {
            check(AddressPolicy::PUBLIC, address, None);
        }
        for address in ["2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"] {
            check(AddressPolicy::PUBLIC, address, None);
        }
    }

    #[test]
    fn other_addresses_are_refused() {
        for address in ["127.0.0.1", "127.9.9.9", "0.0.0.0", "::1", "::"] {
            check(AddressPolicy::PUBLIC, address, Some(LOOPBACK));
        }
        for address in ["10.96.0.1", "172.16.0.1", "172.31.9.9", "192.168.1.1"] {
            check(AddressPolicy::PUBLIC, address, Some(PRIVATE));
        }
        for address in ["100.64.0.1", "fd00::1", "fc00::1", "fec0::1"] {
            check(AddressPolicy::PUBLIC, address, Some(PRIVATE));
        }
        for address in ["169.254.169.254", "fe80::1", "febf::1"] {
            check(AddressPolicy::PUBLIC, address, Some(LINK_LOCAL));
        }
        for address in ["224.0.0.1", "255.255.255.255", "198.18.0.1", "ff02::1"] {
            check(AddressPolicy::PUBLIC, address, Some(SPECIAL));
        }
    }

    #[test]
    fn embedded_ipv4_address_is_checked() {
        check(AddressPolicy::PUBLIC, "::ffff:127.0.0.1", Some(LOOPBACK));
        check(
            AddressPolicy::PUBLIC,
            "64:ff9b::a9fe:a9fe",
            Some(LINK_LOCAL),
        );
        check(AddressPolicy::PUBLIC, "2002:a00:1::1", Some(PRIVATE));
        check(AddressPolicy::PUBLIC, "::127.0.0.1", Some(SPECIAL));
    }

    #[test]
    fn standalone_allows_private_networks_but_not_link_local() {
        check(AddressPolicy::LOCAL, "127.0.0.1", None);
        check(AddressPolicy::LOCAL, "192.168.1.1", None);
        check(AddressPolicy::LOCAL, "169.254.169.254", Some(LINK_LOCAL));
        check(
            AddressPolicy::LOCAL,
            "::ffff:169.254.169.254",
            Some(LINK_LOCAL),
        );
    }
}
