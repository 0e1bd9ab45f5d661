//! `assent bench`: how long a policy takes.

use std::{
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use assent_wasm::Review;
use serde::Serialize;

use crate::{
    evaluate::{Host, Overrides, ReadyPolicy},
    exit::Exit,
    input,
    module::ModuleArgs,
    objects::ObjectsArgs,
    out::{self, OutputArgs},
    request::{Incoming, RequestOptions},
    run::{self, Items},
};

/// Measures how long a policy takes to evaluate objects on this machine.
///
/// The time of an evaluation includes making its sandbox, as in an evaluator, but no HTTP.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Module or manifest, as for `assent run`
    #[arg(value_name = "MODULE|MANIFEST")]
    policy: String,

    /// Objects, reviews or test cases as YAML or JSON, evaluated in turn; repeat for more
    #[arg(short = 'f', long = "file", value_name = "FILE|DIR", required = true)]
    files: Vec<PathBuf>,

    /// Settings as YAML or JSON, instead of those in the manifest
    #[arg(short, long, value_name = "FILE")]
    settings: Option<PathBuf>,

    /// How long to measure, after a tenth of that to warm up
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0)]
    seconds: f64,

    /// Threads that evaluate at the same time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,

    #[command(flatten)]
    objects: ObjectsArgs,

    #[command(flatten)]
    output: OutputArgs,

    #[command(flatten)]
    modules: ModuleArgs,
}

const EXAMPLES: &str = "\
Examples:
  assent bench policy.wasm -f pod.yaml
  assent bench manifest.yaml -f manifests/ --threads 4 -o json

Exit codes: 0 = measured, 2 = an evaluation failed.";

/// Longer measurements tell nothing more, and their times would fill the memory.
const MAX_SECONDS: f64 = 600.0;

/// The JSON form is a contract with scripts. Times are in microseconds.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Measured {
    evaluations: usize,
    per_second: f64,
    threads: u16,
    mean_micros: f64,
    p50_micros: f64,
    p90_micros: f64,
    p99_micros: f64,
    max_micros: f64,
}

// === impl Args ===

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let Self {
            policy,
            files,
            settings,
            seconds,
            threads,
            objects,
            output,
            modules,
        } = self;
        if !(seconds > 0.0 && seconds <= MAX_SECONDS) {
            bail!("--seconds must be more than 0 and at most {MAX_SECONDS}");
        }
        let settings = settings.as_deref().map(run::read_settings).transpose()?;
        let documents = input::read_all(&files, false)?;
        let host = Host::start(modules)?;
        let policy = host.load(&policy, &Overrides::default())?;
        let items = Items {
            policy: &policy,
            options: RequestOptions::default(),
            old_objects: None,
            has_settings: true,
        };
        let requests = items.read(&documents)?;
        if requests.is_empty() {
            bail!("there is nothing to evaluate: the input has no documents");
        }
        let services = host.services(&policy, &objects.read()?)?;
        let ready = host.prepare(&policy, settings, &services);
        let ready = ready.with_context(|| format!("failed to use {}", policy.loaded.name()))?;
        let incoming: Vec<Incoming<'_>> = requests
            .iter()
            .map(|item| Incoming::parse(item.request.as_bytes(), policy.is_raw()))
            .collect::<Result<_, _>>()?;
        let reviews: Vec<Review<'_>> = incoming.iter().map(|one| one.review).collect();
        measure(&ready, &reviews, Duration::from_secs_f64(seconds / 10.0), 1)?;
        let duration = Duration::from_secs_f64(seconds);
        let began = Instant::now();
        let times = measure(&ready, &reviews, duration, threads)?;
        let measured = Measured::of(times, began.elapsed(), threads);
        if output.is_json() {
            out::json(&measured)?;
        } else {
            out::print(measured.text())?;
        }
        Ok(Exit::Yes)
    }
}

/// Times of all evaluations that began within the duration.
fn measure(
    policy: &ReadyPolicy,
    reviews: &[Review<'_>],
    duration: Duration,
    threads: u16,
) -> anyhow::Result<Vec<Duration>> {
    let end = Instant::now() + duration;
    let work = |first: usize| {
        let mut times = Vec::new();
        for review in reviews.iter().cycle().skip(first) {
            let began = Instant::now();
            // At least one, however slow the policy is.
            if began >= end && !times.is_empty() {
                break;
            }
            policy.evaluate(review)?;
            times.push(began.elapsed());
        }
        anyhow::Ok(times)
    };
    thread::scope(|scope| {
        let running: Vec<_> = (0..usize::from(threads))
            .map(|first| scope.spawn(move || work(first % reviews.len().max(1))))
            .collect();
        let mut all = Vec::new();
        for thread in running {
            let times = thread.join();
            all.extend(times.unwrap_or_else(|_| bail!("an evaluation panicked"))?);
        }
        Ok(all)
    })
}

// === impl Measured ===

impl Measured {
    fn of(mut times: Vec<Duration>, took: Duration, threads: u16) -> Self {
        times.sort();
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        let at = |part: f64| {
            let index = (times.len() as f64 * part) as usize;
            let time = times.get(index).or(times.last());
            time.copied().map(micros).unwrap_or_default()
        };
        let total: Duration = times.iter().sum();
        let evaluations = times.len();
        Self {
            evaluations,
            per_second: evaluations as f64 / took.as_secs_f64(),
            threads,
            mean_micros: micros(total) / evaluations.max(1) as f64,
            p50_micros: at(0.5),
            p90_micros: at(0.9),
            p99_micros: at(0.99),
            max_micros: at(1.0),
        }
    }

    fn text(&self) -> String {
        format!(
            "{} evaluations on {} thread(s), {:.0} per second\n  mean  {:.1} µs\n  p50   {:.1} µs\n  p90   {:.1} µs\n  p99   {:.1} µs\n  max   {:.1} µs\n",
            self.evaluations,
            self.threads,
            self.per_second,
            self.mean_micros,
            self.p50_micros,
            self.p90_micros,
            self.p99_micros,
            self.max_micros,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_sorted_times() {
        let times = (1..=100).rev().map(Duration::from_micros).collect();
        let measured = Measured::of(times, Duration::from_secs(1), 1);
        let near = |a: f64, b: f64| (a - b).abs() < 1e-6;
        assert!(near(measured.p50_micros, 51.0), "{measured:?}");
        assert!(near(measured.p99_micros, 100.0) && near(measured.max_micros, 100.0));
        assert!(near(measured.mean_micros, 50.5) && near(measured.per_second, 100.0));
    }
}
