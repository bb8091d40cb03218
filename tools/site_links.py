"""A hook of mkdocs: links from pages to files outside of docs/ lead to the repository's root pages, which become pages of the site."""
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT_PAGES = {"CHANGELOG.md": "changelog.md", "SECURITY.md": "security.md", "CONTRIBUTING.md": "contributing.md", "containers/README.md": "containers.md",
              "tests/data/golden/README.md": "golden.md"}  # fmt: skip


def on_files(files, config):
    root = Path(config["config_file_path"]).parent
    for source, name in ROOT_PAGES.items():
        text = (root / source).read_text()
        text = re.sub(r"\]\(docs/", "](", text) if "/" not in source else re.sub(r"\]\((?![a-z]+:)[^)]*\)", "]", text)
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown, page, config, files):
    up = "../" * page.file.src_uri.count("/")
    for source, name in ROOT_PAGES.items():
        markdown = markdown.replace(f"]({up}../{source}", f"]({up}{name}").replace(f"]({source}", f"]({name}")
    return markdown
