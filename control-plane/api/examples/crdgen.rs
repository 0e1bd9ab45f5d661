//! Writes the CustomResourceDefinitions of Assent's kinds into the chart.

use std::{fs, io, path::Path};

fn main() -> io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/assent/crds");
    fs::create_dir_all(&folder)?;
    for file in assent_api::crd::files() {
        fs::write(folder.join(file.name), file.text)?;
    }
    Ok(())
}
