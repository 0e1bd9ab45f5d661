//! Addresses and networks.

use std::{any::Any, net::IpAddr};

use cel::{
    DeclarationError, Env, ExecutionError,
    common::{
        types::{CelBool, CelInt, CelString, Type},
        value::{StaticVal, Val},
    },
};
use ipnet::IpNet;

use super::failed;

static IP: Type = Type::new_unspecified_type("net.IP");
static CIDR: Type = Type::new_unspecified_type("net.CIDR");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ip(IpAddr);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cidr(IpNet);

pub(super) fn extension(env: &mut Env) -> Result<(), DeclarationError> {
    env.add_type(IP.to_owned())?;
    env.add_type(CIDR.to_owned())?;
    addresses(env)?;
    networks(env)
}

fn addresses(env: &mut Env) -> Result<(), DeclarationError> {
    cel::add_overload!(env, fn ip: (CelString) -> Result<Ip>)?;
    cel::add_overload!(env, fn is_ip: (CelString) -> CelBool, name = "isIP")?;
    cel::add_overload!(env, fn is_canonical: (CelString) -> Result<CelBool>, name = "ip.isCanonical")?;
    cel::add_overload!(env, fn ip_string: (Ip) -> CelString, name = "string")?;
    cel::add_member_overload!(env, fn family: (Ip) -> CelInt)?;
    cel::add_member_overload!(env, fn is_unspecified: (Ip) -> CelBool)?;
    cel::add_member_overload!(env, fn is_loopback: (Ip) -> CelBool)?;
    cel::add_member_overload!(env, fn is_link_local_multicast: (Ip) -> CelBool)?;
    cel::add_member_overload!(env, fn is_link_local_unicast: (Ip) -> CelBool)?;
    cel::add_member_overload!(env, fn is_global_unicast: (Ip) -> CelBool)
}

fn networks(env: &mut Env) -> Result<(), DeclarationError> {
    cel::add_overload!(env, fn cidr: (CelString) -> Result<Cidr>)?;
    cel::add_overload!(env, fn is_cidr: (CelString) -> CelBool, name = "isCIDR")?;
    cel::add_overload!(env, fn cidr_string: (Cidr) -> CelString, name = "string")?;
    cel::add_member_overload!(env, fn contains_ip: (Cidr, Ip) -> CelBool, name = "containsIP")?;
    cel::add_member_overload!(env, fn contains_ip_text: (Cidr, CelString) -> Result<CelBool>, name = "containsIP")?;
    cel::add_member_overload!(env, fn contains_cidr: (Cidr, Cidr) -> CelBool, name = "containsCIDR")?;
    cel::add_member_overload!(env, fn contains_cidr_text: (Cidr, CelString) -> Result<CelBool>, name = "containsCIDR")?;
    cel::add_member_overload!(env, fn address: (Cidr) -> Ip, name = "ip")?;
    cel::add_member_overload!(env, fn masked: (Cidr) -> Cidr)?;
    cel::add_member_overload!(env, fn prefix_length: (Cidr) -> CelInt)
}

macro_rules! value {
    ($type:ty, $cel:ident) => {
        impl Val for $type {
            fn get_type(&self) -> &Type {
                &$cel
            }

            fn cel_type() -> &'static Type {
                &$cel
            }

            fn equals(&self, other: &dyn Val) -> bool {
                other
                    .downcast_ref::<Self>()
                    .is_some_and(|other| other == self)
            }

            fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
                Box::new(*self)
            }

            fn as_any(&self) -> Option<&dyn Any> {
                Some(self)
            }
        }

        impl StaticVal for $type {}
    };
}

value!(Ip, IP);
value!(Cidr, CIDR);

/// Kubernetes takes neither IPv4 addresses in IPv6 form nor zones.
fn parse(text: &str) -> Option<IpAddr> {
    let address: IpAddr = text.parse().ok()?;
    match address {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => None,
        address => Some(address),
    }
}

fn parse_net(text: &str) -> Option<IpNet> {
    let net: IpNet = text.parse().ok()?;
    parse(&net.addr().to_string()).map(|_| net)
}

fn ip(text: &CelString<'_>) -> Result<Ip, ExecutionError> {
    let parsed = parse(text.inner());
    parsed
        .map(Ip)
        .ok_or_else(|| failed("ip", format!("IP Address {:?} parse error", text.inner())))
}

fn is_ip(text: &CelString<'_>) -> CelBool {
    parse(text.inner()).is_some().into()
}

fn is_canonical(text: &CelString<'_>) -> Result<CelBool, ExecutionError> {
    let Ip(address) = ip(text)?;
    Ok((address.to_string() == text.inner()).into())
}

fn ip_string(this: &Ip) -> CelString<'static> {
    this.0.to_string().into()
}

fn family(this: &Ip) -> CelInt {
    CelInt::from(if this.0.is_ipv4() { 4 } else { 6 })
}

fn is_unspecified(this: &Ip) -> CelBool {
    this.0.is_unspecified().into()
}

fn is_loopback(this: &Ip) -> CelBool {
    this.0.is_loopback().into()
}

fn link_local_multicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.octets()[..3] == [224, 0, 0],
        IpAddr::V6(v6) => v6.segments()[0] & 0xff0f == 0xff02,
    }
}

fn link_local_unicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.segments()[0] & 0xffc0 == 0xfe80,
    }
}

fn is_link_local_multicast(this: &Ip) -> CelBool {
    link_local_multicast(this.0).into()
}

fn is_link_local_unicast(this: &Ip) -> CelBool {
    link_local_unicast(this.0).into()
}

fn is_global_unicast(this: &Ip) -> CelBool {
    let broadcast = matches!(this.0, IpAddr::V4(v4) if v4.is_broadcast());
    let other = broadcast
        || this.0.is_unspecified()
        || this.0.is_loopback()
        || this.0.is_multicast()
        || link_local_unicast(this.0);
    (!other).into()
}

fn cidr(text: &CelString<'_>) -> Result<Cidr, ExecutionError> {
    let parsed = parse_net(text.inner());
    parsed.map(Cidr).ok_or_else(|| {
        failed(
            "cidr",
            "network address parse error during conversion from string",
        )
    })
}

fn is_cidr(text: &CelString<'_>) -> CelBool {
    parse_net(text.inner()).is_some().into()
}

fn cidr_string(this: &Cidr) -> CelString<'static> {
    this.0.to_string().into()
}

fn contains_ip(this: &Cidr, address: &Ip) -> CelBool {
    this.0.contains(&address.0).into()
}

fn contains_ip_text(this: &Cidr, text: &CelString<'_>) -> Result<CelBool, ExecutionError> {
    Ok(contains_ip(this, &ip(text)?))
}

fn contains_cidr(this: &Cidr, other: &Cidr) -> CelBool {
    this.0.contains(&other.0).into()
}

fn contains_cidr_text(this: &Cidr, text: &CelString<'_>) -> Result<CelBool, ExecutionError> {
    Ok(contains_cidr(this, &cidr(text)?))
}

fn address(this: &Cidr) -> Ip {
    Ip(this.0.addr())
}

fn masked(this: &Cidr) -> Cidr {
    Cidr(this.0.trunc())
}

fn prefix_length(this: &Cidr) -> CelInt {
    i64::from(this.0.prefix_len()).into()
}
