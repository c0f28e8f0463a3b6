#!/bin/sh
# Back up a data directory while the server runs: log files that the last backup has are linked, old backups go.
# mq-backup.sh DATA BACKUPS [DAYS]
set -eu
data=$1 backups=$2 days=${3:-14}
mq=${MQ:-/opt/mq/bin/mq}
last=$(find "$backups" -mindepth 2 -maxdepth 2 -name backup.json | sort | tail -n 1)
"$mq" backup "$data" "$backups/$(date -u +%Y-%m-%dT%H%M%SZ)" ${last:+--link-from "${last%/backup.json}"}
# Only what is whole and old; backup.json has the time it was finished at.
find "$backups" -mindepth 2 -maxdepth 2 -name backup.json -mtime "+$days" | while read -r old; do
    rm -r "${old%/backup.json}"
done
