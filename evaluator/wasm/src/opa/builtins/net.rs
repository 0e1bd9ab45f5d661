//! Address ranges.

use std::{collections::BTreeSet, net::IpAddr};

use ipnet::IpNet;
use regorus::Value;

use super::{Bounded, TooMuch, bounded::within, string};
use crate::opa::deadline;

/// Addresses in one expanded range: a /16 of IPv4.
const MAX_HOSTS: usize = 65_536;

/// Pairs that are compared in one call.
const MAX_PAIRS: usize = 1_000_000;

pub(super) fn find(name: &str) -> Option<Bounded> {
    Some(match name {
        "net.cidr_expand" => expand,
        "net.cidr_merge" => |args| Ok(merge(args)),
        "net.cidr_contains_matches" => contains_matches,
        _ => return None,
    })
}

fn expand(args: &[Value]) -> Result<Option<Value>, TooMuch> {
    let Some(net) = string(args, 0).and_then(|text| text.parse::<IpNet>().ok()) else {
        return Ok(None);
    };
    let bits = u32::from(net.max_prefix_len() - net.prefix_len());
    let count = 1_usize.checked_shl(bits).unwrap_or(usize::MAX);
    within(count, MAX_HOSTS)?;
    deadline::reserve_values(count);
    let first = net.network();
    let address = |index: usize| match first {
        IpAddr::V4(v4) => {
            IpAddr::from((u32::from(v4) + u32::try_from(index).unwrap_or(0)).to_be_bytes())
        }
        IpAddr::V6(v6) => IpAddr::from((u128::from(v6) + index as u128).to_be_bytes()),
    };
    let hosts: BTreeSet<_> = (0..count)
        .map(|index| {
            deadline::tick();
            Value::from(address(index).to_string())
        })
        .collect();
    Ok(Some(Value::from(hosts)))
}

fn merge(args: &[Value]) -> Option<Value> {
    let nets = members(args.first()?)?
        .iter()
        .map(|item| range(item))
        .collect::<Option<Vec<_>>>()?;
    let merged: BTreeSet<_> = IpNet::aggregate(&nets)
        .iter()
        .map(|net| Value::from(net.to_string()))
        .collect();
    Some(Value::from(merged))
}

/// Pairs of (index or key of the range, index or key of the address) where one contains the other.
fn contains_matches(args: &[Value]) -> Result<Option<Value>, TooMuch> {
    let [ranges, addresses] = [0, 1].map(|index| args.get(index).and_then(keyed));
    let (Some(ranges), Some(addresses)) = (ranges, addresses) else {
        return Ok(None);
    };
    within(ranges.len().saturating_mul(addresses.len()), MAX_PAIRS)?;
    let mut found = BTreeSet::new();
    for (range_key, outer) in &ranges {
        for (address_key, inner) in &addresses {
            deadline::tick();
            if outer.contains(inner) {
                found.insert(Value::from(vec![range_key.clone(), address_key.clone()]));
            }
        }
    }
    Ok(Some(Value::from(found)))
}

/// A range, or an address as the range of itself.
fn range(value: &Value) -> Option<IpNet> {
    let Value::String(text) = value else {
        return None;
    };
    let net = text.parse::<IpNet>().ok().map(|net| net.trunc());
    net.or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
}

fn members(value: &Value) -> Option<Vec<&Value>> {
    match value {
        Value::Array(items) => Some(items.iter().collect()),
        Value::Set(items) => Some(items.iter().collect()),
        _ => None,
    }
}

/// Strings stand for themselves, arrays for their indices, objects for their keys; of a list as member its
/// first entry counts.
fn keyed(value: &Value) -> Option<Vec<(Value, IpNet)>> {
    let entry = |item: &Value| match item {
        Value::Array(items) => range(items.get(0)?),
        other => range(other),
    };
    match value {
        Value::String(_) => Some(vec![(value.clone(), range(value)?)]),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .map(|(index, item)| Some((Value::from(index), entry(item)?)))
            .collect(),
        Value::Set(items) => items
            .iter()
            .map(|item| Some((item.clone(), entry(item)?)))
            .collect(),
        Value::Object(fields) => fields
            .iter()
            .map(|(key, item)| Some((key.clone(), entry(item)?)))
            .collect(),
        _ => None,
    }
}
