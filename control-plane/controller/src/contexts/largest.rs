//! Which fields make a collection large.

use std::collections::BTreeMap;

use assent_context::Totals;
use serde_json::Value;

/// Fields that are reported.
const MAX_FIELDS: usize = 3;

/// The fields that take most of a collection's bytes, estimated from a sample of its objects.
pub fn largest_fields(sample: &[impl AsRef<[u8]>], totals: Totals) -> Vec<(String, u64)> {
    let mut sizes: BTreeMap<String, u64> = BTreeMap::new();
    let mut sampled = 0;
    for object in sample {
        sampled += object.as_ref().len() as u64;
        let Ok(Value::Object(object)) = serde_json::from_slice(object.as_ref()) else {
            continue;
        };
        for (name, value) in object {
            match (name.as_str(), value) {
                ("metadata", Value::Object(metadata)) => {
                    for (name, value) in metadata {
                        *sizes.entry(format!("metadata.{name}")).or_default() += size(&value);
                    }
                }
                (_, value) => *sizes.entry(name).or_default() += size(&value),
            }
        }
    }
    let mut sizes: Vec<(String, u64)> = sizes.into_iter().collect();
    sizes.sort_by_key(|(_, size)| std::cmp::Reverse(*size));
    sizes.truncate(MAX_FIELDS);
    let scale = |size: u64| match sampled {
        0 => 0,
        sampled => u64::try_from(u128::from(size) * u128::from(totals.bytes) / u128::from(sampled))
            .unwrap_or(u64::MAX),
    };
    let scaled = sizes.into_iter().map(|(name, size)| (name, scale(size)));
    scaled.collect()
}

fn size(value: &Value) -> u64 {
    serde_json::to_vec(value).map_or(0, |text| text.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_fields_come_first_and_are_scaled() {
        let object = br#"{"kind":"Pod","metadata":{"name":"a","annotations":{"x":"yyyyyyyyyyyyyyyy"}},"status":{"a":"bbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"}}"#;
        let totals = Totals {
            objects: 10,
            bytes: object.len() as u64 * 10,
        };
        let largest = largest_fields(&[object], totals);
        assert_eq!(largest[0], ("status".to_owned(), 380));
        assert_eq!(largest[1].0, "metadata.annotations");
        assert_eq!(largest.len(), 3);
    }
}
