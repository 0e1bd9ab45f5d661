//! Adds to dates as Go does: days beyond the end of a month continue in the next.

use jiff::{Span, Timestamp, tz::TimeZone};
use regorus::Value;

use super::{Own, rego};

/// More than the years that nanoseconds in 64 bits can express.
const MOST_MONTHS: i64 = 12 * 600;

pub(super) fn find(name: &str) -> Option<Own> {
    (name == "time.add_date").then_some(add_date as Own)
}

fn add_date(args: &[Value]) -> Option<Value> {
    let Some(nanos) = utc(args.first()?) else {
        return rego::delegate("time.add_date", args);
    };
    let [years, months, days] = [int(args.get(1)?)?, int(args.get(2)?)?, int(args.get(3)?)?];
    let from = Timestamp::from_nanosecond(i128::from(nanos)).ok()?;
    let from = TimeZone::UTC.to_datetime(from);
    let months = years.checked_mul(12)?.checked_add(months)?;
    if months.abs() > MOST_MONTHS {
        return None;
    }
    let days = days.checked_add(i64::from(from.day()) - 1)?;
    let first = from.with().day(1).build().ok()?;
    let month = first
        .checked_add(Span::new().try_months(months).ok()?)
        .ok()?;
    let to = month.checked_add(Span::new().try_days(days).ok()?).ok()?;
    let nanos = TimeZone::UTC.to_timestamp(to).ok()?.as_nanosecond();
    i64::try_from(nanos).ok().map(Value::from)
}

/// Nanoseconds without a time zone; other zones need tables that not every host has.
fn utc(value: &Value) -> Option<i64> {
    let Value::Array(parts) = value else {
        return int(value);
    };
    let is_utc = match parts.get(1) {
        Some(Value::String(name)) => name.is_empty() || &**name == "UTC",
        Some(_) => false,
        None => true,
    };
    if is_utc { int(parts.get(0)?) } else { None }
}

fn int(value: &Value) -> Option<i64> {
    if let Value::Number(number) = value {
        number.as_i64()
    } else {
        None
    }
}
