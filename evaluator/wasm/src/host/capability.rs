//! Patterns of host calls: what a server grants, and what a module asks for.
//!
//! `*` is every call, `net/*` every call below `net`, anything else exactly the call of that name.

/// The host calls that a policy may make: what its server grants, narrowed by the module's own list. A module without
/// a list gets everything that is granted; a list never widens the grant.
pub fn effective(granted: &[String], listed: Option<&[String]>) -> Vec<String> {
    let mut calls: Vec<String> = match listed {
        None => granted.to_vec(),
        Some(listed) => {
            let pairs = granted
                .iter()
                .flat_map(|one| listed.iter().map(move |other| (one, other)));
            pairs
                .filter_map(|(one, other)| common(one, other))
                .map(str::to_owned)
                .collect()
        }
    };
    calls.sort_unstable();
    calls.dedup();
    calls
}

/// Whether a pattern allows an operation, such as `oci/v1/verify`.
pub fn allows(pattern: &str, operation: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some("") => true,
        Some(prefix) => prefix.ends_with('/') && operation.starts_with(prefix),
        None => pattern == operation,
    }
}

/// What two patterns have in common. That is the narrower one, because patterns are prefixes; a pattern allows
/// itself, so that its star may stand for an operation here.
fn common<'a>(one: &'a str, other: &'a str) -> Option<&'a str> {
    if allows(one, other) {
        Some(other)
    } else {
        allows(other, one).then_some(one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(granted: &[&str], listed: Option<&[&str]>, expected: &[&str]) {
        let owned = |list: &[&str]| list.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
        let listed = listed.map(owned);
        assert_eq!(effective(&owned(granted), listed.as_deref()), expected);
    }

    #[test]
    fn module_without_a_list_gets_the_grant() {
        check(&["oci/*", "crypto/*"], None, &["crypto/*", "oci/*"]);
        check(&[], None, &[]);
    }

    #[test]
    fn list_narrows_the_grant() {
        let granted = ["oci/*", "net/v1/dns_lookup_host"];
        check(&granted, Some(&["oci/v1/verify"]), &["oci/v1/verify"]);
        check(&granted, Some(&["net/*"]), &["net/v1/dns_lookup_host"]);
        check(&granted, Some(&["*"]), &["net/v1/dns_lookup_host", "oci/*"]);
        check(
            &granted,
            Some(&["oci/v1/*", "oci/*"]),
            &["oci/*", "oci/v1/*"],
        );
        check(&granted, Some(&[]), &[]);
    }

    #[test]
    fn list_never_widens_the_grant() {
        check(&["oci/v1/verify"], Some(&["net/*", "oci/v2/verify"]), &[]);
        check(&["oci/v1/verify"], Some(&["*"]), &["oci/v1/verify"]);
        check(&[], Some(&["*"]), &[]);
        // Only whole segments: neither is a prefix of the other.
        check(&["oci/v1/*"], Some(&["oci/v1*", "oci/v10/verify"]), &[]);
        check(&["oc*"], Some(&["oci/v1/verify"]), &[]);
    }
}
